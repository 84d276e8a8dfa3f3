"""The statements of the outbox: each handles any number of effects in one round trip."""

from sqlalchemy import TextClause, text

# What an OpenEffect has.
_EFFECT = """effects.id, effects.job_id, effects.kind, effects.wakes, effects.attempts, effects.unforeseen, effects.refusals,
        COALESCE(effects.lease, 0) AS holder, effects.takings AS taking,
        GREATEST(EXTRACT(EPOCH FROM effects.due_at - now()), 0)::float8 AS due_in_s"""


def _returning(statement: str, *columns: str) -> TextClause:
    return text(f"{statement} RETURNING {', '.join((_EFFECT, *columns))}")


# Opens effects; one that is open already is brought forward and counts one demand more. One that is parked is tried once
# more: what is new may help, and if it does not, the effect is parked again at its first failure. A demand that is not for now
# (a caller who has said too much already) leaves it parked: it would be tried at once, and so as often as anybody likes.
OPEN = _returning(
    """
    INSERT INTO effects (cluster, job_id, kind, due_at, woken_at)
    SELECT :cluster, wanted.job_id, wanted.kind, now() + wanted.due_in_s * interval '1 second', now()
    FROM unnest(CAST(:job_ids AS text[]), CAST(:kinds AS text[]), CAST(:dues AS float8[]))
        AS wanted(job_id, kind, due_in_s)
    ON CONFLICT (cluster, job_id, kind) WHERE done_at IS NULL
    DO UPDATE SET due_at = LEAST(effects.due_at, EXCLUDED.due_at), wakes = effects.wakes + 1, woken_at = now(),
        parked_at = CASE WHEN EXCLUDED.due_at > now() THEN effects.parked_at END
    """,
    "lease",
    "parked_at",
)

# Whether a taking still holds its effect, until the transaction's end. A lease is not a process's but a taking's: the same
# process may have lost the effect and taken it again meanwhile.
HELD = text(
    """
    SELECT id FROM effects
    WHERE id = :id AND done_at IS NULL AND lease = :holder AND takings = :taking AND lease_until > now()
    FOR UPDATE
    """
)

# Ends effects that were carried out by who holds them: done, or due again (`due_in_s`), or, when a demand came in
# meanwhile, due at once. What was carried out in vain goes on to fail: whatever the next step of its circle is, nothing
# has come of it.
END = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = ended.in_vain, woken_at = now(),
        attempts = CASE WHEN ended.in_vain IS NULL THEN 0 ELSE attempts END,
        failing_since = CASE WHEN ended.in_vain IS NOT NULL THEN COALESCE(failing_since, now()) END,
        unforeseen = 0, refusals = 0, evidence = NULL,
        done_at = CASE WHEN effects.wakes = ended.wakes AND ended.due_in_s IS NULL THEN now() END,
        due_at = CASE WHEN effects.wakes = ended.wakes
            THEN now() + COALESCE(ended.due_in_s, 0) * interval '1 second' ELSE LEAST(effects.due_at, now()) END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:wakes AS int[]), CAST(:dues AS float8[]), CAST(:holders AS bigint[]),
        CAST(:takings AS bigint[]), CAST(:in_vain AS text[])) AS ended(id, wakes, due_in_s, holder, taking, in_vain)
    WHERE effects.id = ended.id AND effects.done_at IS NULL
        AND effects.lease = ended.holder AND effects.takings = ended.taking
    """,
    "parked_at",
    "done_at",
)

# Closes the open effects of these (job, kind) pairs, whoever works on them.
CLOSE = text(
    """
    UPDATE effects SET done_at = now(), lease = NULL, lease_until = NULL
    FROM unnest(CAST(:job_ids AS text[]), CAST(:kinds AS text[])) AS pointless(job_id, kind)
    WHERE effects.cluster = :cluster AND effects.job_id = pointless.job_id AND effects.kind = pointless.kind
        AND effects.done_at IS NULL
    """
)

# Takes effects that are due and that nobody works on; several takers never get the same one. A suspect comes alone, and only
# while no other one is being carried out; who has just taken one takes nothing besides, and waits for the end of what it holds
# already (ALONE): if the worker dies of it, it is known of what.
_LEASE = """
    UPDATE effects SET lease = :holder, lease_until = now() + :lease_s * interval '1 second', attempts = attempts + 1,
        takings = takings + 1
    WHERE id IN (
        WITH due AS (
            SELECT id, due_at, unforeseen >= :suspect AS suspect FROM effects
            WHERE cluster = :cluster AND kind = ANY(:kinds) AND (CAST(:effect_id AS bigint) IS NULL OR id = :effect_id)
                AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL
                AND due_at <= now() + interval '20 milliseconds'
                AND (unforeseen < :suspect OR NOT EXISTS (
                    SELECT FROM effects AS other
                    WHERE other.cluster = :cluster AND other.done_at IS NULL AND other.failing_since IS NOT NULL
                        AND other.lease IS NOT NULL AND other.unforeseen >= :suspect
                ))
                AND NOT EXISTS (
                    SELECT FROM effects AS mine
                    WHERE mine.cluster = :cluster AND mine.done_at IS NULL AND mine.failing_since IS NOT NULL
                        AND mine.lease = :holder AND mine.unforeseen >= :suspect
                        AND mine.lease_until > now() + (:lease_s - :alone_s) * interval '1 second'
                ){turn}
            ORDER BY due_at LIMIT :most FOR UPDATE {locked}
        ), first AS (
            SELECT id, suspect FROM due ORDER BY suspect, due_at, id LIMIT 1
        )
        SELECT due.id FROM due CROSS JOIN first WHERE due.id = first.id OR NOT (due.suspect OR first.suspect)
    )
    """
LEASE = _returning(_LEASE.format(locked="SKIP LOCKED", turn=""))

# Of the one effect that a message is about: a row that is just being looked at for what was forgotten is waited for. Who came
# away empty would leave it to the next message, seconds later. A submission whose customer has as many under way as one
# customer may is not taken: it waits its turn (NEXT_TURN). Only jobs in these two states have an effect of that kind.
_TURN = """
                AND (kind <> 'submit' OR :at_once > (
                    SELECT count(*) FROM jobs JOIN effects AS theirs USING (cluster, job_id)
                    WHERE cluster = :cluster AND state IN ('READY', 'SUBMITTING')
                        AND theirs.kind = 'submit' AND theirs.done_at IS NULL AND theirs.lease IS NOT NULL
                        AND customer = (SELECT customer FROM jobs AS this
                            WHERE this.cluster = :cluster AND this.job_id = effects.job_id)
                ))"""
LEASE_ONE = _returning(_LEASE.format(locked="", turn=_TURN))

# Those who take submissions of one customer take them one after the other: each counts what the one before has taken.
ONE_TAKER = text(
    """
    SELECT pg_advisory_xact_lock(:turns, hashtext(cluster || customer)) FROM effects JOIN jobs USING (cluster, job_id)
    WHERE effects.id = :effect_id AND kind = 'submit' AND done_at IS NULL
    """
)
ONE_TAKER_OF = text("SELECT pg_advisory_xact_lock(:turns, hashtext(CAST(:cluster AS text) || CAST(:customer AS text)))")

# The submission of a customer that has waited longest of those that are due.
NEXT_TURN = text(
    """
    SELECT effects.id FROM jobs JOIN effects USING (cluster, job_id)
    WHERE cluster = :cluster AND state IN ('READY', 'SUBMITTING') AND customer = :customer
        AND kind = 'submit' AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()
    ORDER BY due_at, effects.id LIMIT 1
    """
)

# A message is about to be sent for an effect.
WOKEN = _returning(
    "UPDATE effects SET woken_at = now() WHERE id = :id AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL"
)

# What a customer's login that hangs is not to be asked for waits until it is asked again, without a message for each.
PUT_OFF = text(
    """
    UPDATE effects SET due_at = now() + :due_in_s * interval '1 second', woken_at = NULL
    FROM jobs
    WHERE jobs.cluster = effects.cluster AND jobs.job_id = effects.job_id AND jobs.state = 'READY'
        AND effects.cluster = :cluster AND jobs.customer = :customer
        AND kind = 'submit' AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL
        AND due_at < now() + :due_in_s * interval '1 second'
    """
)

# Whether a holder carries out nothing but that effect.
ALONE = text(
    """
    SELECT NOT EXISTS (
        SELECT FROM effects
        WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease = :holder AND id <> :id
    )
    """
)

# Frees the leases of holders that are gone and of those that took far too long. Either may be the effect's doing, and counts as
# a failure that nobody foresaw; not where the database itself was away, which ends all holders. Two of them make an effect a
# suspect. From then on the end of a holder counts only for an effect that was all it held: so whoever kills workers makes many
# suspects, but parks only an effect that is alone there each time. Who lives and took too long did so by that effect. A
# suspect that was there waits, and the others go first.
FREE_LEASES = text(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, woken_at = NULL,
        unforeseen = unforeseen + counts, failing_since = COALESCE(failing_since, now()),
        last_error = :error,
        due_at = CASE WHEN blamed AND unforeseen >= :suspect
            THEN now() + 5 * 2 ^ LEAST(unforeseen, 6) * interval '1 second' ELSE due_at END,
        parked_at = CASE WHEN counts = 1 AND unforeseen + 1 >= :bound THEN now() END,
        evidence = CASE WHEN counts = 1 AND unforeseen + 1 >= :bound
            THEN jsonb_build_object('reason', CAST(:error AS text), 'attempts', attempts) END
    FROM (
        SELECT id AS freed, blamed, CASE WHEN blamed AND (unforeseen < :suspect OR lives OR NOT EXISTS (
            SELECT FROM effects AS other
            WHERE other.cluster = :cluster AND other.done_at IS NULL AND other.parked_at IS NULL
                AND other.lease = held.lease AND other.id <> held.id
        )) THEN 1 ELSE 0 END AS counts
        FROM (
            SELECT id, lease, unforeseen, lease = ANY(:alive) AS lives,
                lease_until - :lease_s * interval '1 second' > pg_postmaster_start_time() AS blamed
            FROM effects
            WHERE cluster = :cluster AND done_at IS NULL AND lease IS NOT NULL
                AND (lease_until < now() OR NOT lease = ANY(:alive))
            FOR UPDATE SKIP LOCKED
        ) AS held
    ) AS judged
    WHERE id = freed
    RETURNING id, job_id, kind, attempts, parked_at
    """
)

# Effects that are due, that nobody works on, and for which no message was sent lately; `woken` when one was sent since they
# are due. Of a customer's submissions as many as may be under way: each that ends takes the next one.
FORGOTTEN = _returning(
    """
    UPDATE effects SET woken_at = now()
    FROM (
        SELECT id AS due, COALESCE(woken_at >= due_at, false) AS woken FROM effects
        WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()
            AND (woken_at IS NULL OR woken_at < GREATEST(due_at, now() - :again_s * interval '1 second'))
            AND (kind <> 'submit' OR id IN (
                SELECT turns.id FROM (
                    SELECT theirs.id, row_number() OVER (
                        PARTITION BY customer ORDER BY theirs.lease IS NULL, theirs.due_at, theirs.id
                    ) AS place
                    FROM jobs JOIN effects AS theirs USING (cluster, job_id)
                    WHERE cluster = :cluster AND state IN ('READY', 'SUBMITTING') AND theirs.kind = 'submit'
                        AND theirs.done_at IS NULL AND theirs.parked_at IS NULL
                        AND (theirs.lease IS NOT NULL OR theirs.due_at <= now())
                ) AS turns WHERE turns.place <= :at_once
            ))
        ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
    ) AS forgotten
    WHERE id = due
    """,
    "woken",
)

# Gives effects back that are held, to be tried again later, or at once when a demand came in meanwhile. Without an error
# nothing has failed, and the count of failures begins anew; that of those that nobody foresaw does also when this one was
# foreseen. What waits is not counted, but for how long it has. Refusals are counted whatever else fails between them, until
# there is no failure (one that came while the effect was held is none of the past).
POSTPONE = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = :error, woken_at = NULL,
        attempts = CASE WHEN CAST(:error AS text) IS NULL OR :waits THEN 0 ELSE attempts END,
        unforeseen = CASE WHEN :unforeseen THEN unforeseen + 1 ELSE 0 END,
        refusals = CASE WHEN :refused THEN refusals + 1
            WHEN CAST(:error AS text) IS NULL AND effects.wakes = given.wakes THEN 0 ELSE refusals END,
        failing_since = CASE WHEN CAST(:error AS text) IS NOT NULL THEN COALESCE(failing_since, now()) END,
        due_at = CASE WHEN effects.wakes = given.wakes
            THEN now() + :due_in_s * interval '1 second' ELSE LEAST(effects.due_at, now()) END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:wakes AS int[]), CAST(:holders AS bigint[]), CAST(:takings AS bigint[]))
        AS given(id, wakes, holder, taking)
    WHERE effects.id = given.id AND effects.done_at IS NULL
        AND effects.lease = given.holder AND effects.takings = given.taking
    """,
    "parked_at",
)

# Takes an effect out of the running until an operator decides or something new is heard; what was heard already, while the
# effect was being carried out, counts.
PARK = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = :error, failing_since = COALESCE(failing_since, now()),
        evidence = CAST(:evidence AS jsonb) || jsonb_build_object('attempts', attempts),
        parked_at = CASE WHEN wakes = :wakes THEN now() END, due_at = LEAST(due_at, now()), woken_at = now()
    WHERE id = :id AND done_at IS NULL AND lease = :holder AND takings = :taking
    """,
    "parked_at",
)

# How many effects are parked, and how it stands with those that fail and are tried all the same.
TROUBLE = text(
    """
    SELECT count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
        count(*) FILTER (WHERE late) AS late,
        COALESCE(max(attempts) FILTER (WHERE late), 0) AS most_tries,
        COALESCE(max(EXTRACT(EPOCH FROM now() - failing_since)) FILTER (WHERE late), 0)::float8 AS longest_s,
        (array_agg(last_error ORDER BY failing_since) FILTER (WHERE late))[1] AS last_error
    FROM (
        SELECT *, parked_at IS NULL AND (attempts > :late_tries
            OR failing_since < now() - :late_s * interval '1 second') AS late
        FROM effects WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL
    ) AS failing
    """
)

# Why effects fail whose last error begins with these words: how many, and some of the reasons, each once.
FAILING_WITH = text(
    """
    SELECT count(*) AS effects, COALESCE((array_agg(DISTINCT last_error))[1:5], ARRAY[]::text[]) AS errors
    FROM effects WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND starts_with(last_error, :words)
    """
)

# Lets parked effects, or open ones that wait for their next try, begin anew: all, of one job, or the one with that id.
RETRY = _returning(
    """
    UPDATE effects SET parked_at = NULL, due_at = now(), woken_at = NULL, attempts = 0, unforeseen = 0, refusals = 0,
        failing_since = NULL
    WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND lease IS NULL
        AND (CAST(:effect_id AS bigint) IS NULL OR id = :effect_id)
        AND (CAST(:job_id AS text) IS NULL OR job_id = :job_id)
    """,
)

# Ends a parked effect that nobody carried out.
FORGET = text("UPDATE effects SET done_at = now() WHERE cluster = :cluster AND id = :id AND parked_at IS NOT NULL")

# Brings forward what waits for its next try: what it waited for has turned out otherwise.
HURRY = text(
    """
    UPDATE effects SET due_at = LEAST(due_at, now()), wakes = wakes + 1, woken_at = NULL,
        last_error = COALESCE(CAST(:error AS text), last_error),
        refusals = CASE WHEN CAST(:error AS text) IS NULL THEN refusals ELSE refusals + 1 END,
        failing_since = CASE WHEN CAST(:error AS text) IS NULL THEN failing_since ELSE COALESCE(failing_since, now()) END
    WHERE cluster = :cluster AND job_id = ANY(:job_ids) AND kind = ANY(:kinds) AND done_at IS NULL AND parked_at IS NULL
    """
)
