"""What decides whether a message about an alarm is due, and its state, as SQL. Pure."""


def _silenced_after(moment: str) -> str:
    """The condition that the message's alarm has a silence that ends later."""
    return f"""
        EXISTS (SELECT FROM alarm_silences AS silence JOIN alarm_incidents AS of_it ON of_it.alarm = silence.alarm
            WHERE of_it.id = message.incident_id AND silence.cluster = message.cluster AND silence.ends_at > {moment})
    """


# A resolution follows a raise that the channel has taken.
MAY_BE_SENT = f"""
    message.done_at IS NULL AND message.parked_at IS NULL AND message.due_at <= now()
    AND NOT {_silenced_after("now()")}
    AND (message.kind <> 'resolved' OR EXISTS (SELECT FROM alarm_messages AS raised
        WHERE raised.incident_id = message.incident_id AND raised.channel = message.channel
            AND raised.kind = 'raised' AND raised.sent_at IS NOT NULL))
"""
# When the failures of a message began; null while it does not fail. Nothing is sent in a
# silence, so the failures before its end count no more.
FAILING_SINCE = f"""
    CASE WHEN NOT {_silenced_after("message.failing_since")} THEN message.failing_since END
"""
# A message stays `sent` while its channel waits for the next repeat. A message is
# `waiting` until a silence ends, or until the channel has taken the raise before it.
MESSAGE_STATE = f"""
    CASE WHEN message.done_at IS NULL AND message.parked_at IS NOT NULL THEN 'parked'
        WHEN message.done_at IS NULL AND {FAILING_SINCE} IS NOT NULL THEN 'failing'
        WHEN {MAY_BE_SENT} THEN 'due'
        WHEN message.sent_at IS NOT NULL THEN 'sent'
        WHEN message.done_at IS NOT NULL THEN 'dropped'
        ELSE 'waiting' END
"""
# In the form of the driver, because beat does not use SQLAlchemy.
SOMETHING_IS_DUE = f"""
    EXISTS (SELECT FROM alarm_incidents WHERE cluster = %(cluster)s AND due_at <= now())
    OR EXISTS (SELECT FROM alarm_messages AS message WHERE cluster = %(cluster)s AND {MAY_BE_SENT})
"""  # noqa: S608  no part comes from outside
