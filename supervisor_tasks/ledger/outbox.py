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

# Which of these takings still hold their effects, until the transaction's end. A lease is not a process's but a taking's: the
# same process may have lost the effect and taken it again meanwhile.
HELD = text(
    """
    SELECT effects.id FROM effects
    JOIN unnest(CAST(:ids AS bigint[]), CAST(:holders AS bigint[]), CAST(:takings AS bigint[]))
        AS given(id, holder, taking) ON given.id = effects.id
    WHERE done_at IS NULL AND lease = given.holder AND takings = given.taking AND lease_until > now()
    ORDER BY effects.id FOR UPDATE OF effects
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

_DUE = "cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND due_at <= now() + interval '20 milliseconds'"
_TAKE = """
    UPDATE effects SET lease = :holder, lease_until = now() + :lease_s * interval '1 second', attempts = attempts + 1,
        takings = takings + 1
    WHERE id IN ({chosen})
    """


def leasing(chosen: str) -> TextClause:
    """A statement that takes the effects whose ids are chosen so, with `{due}` in place of what makes them due."""
    return _returning(_TAKE.format(chosen=chosen.format(due=_DUE)))


# Takes effects that are due and that no worker works on; several takers never get the same one. A suspect, during which workers
# have ended, is not among them.
LEASE = leasing(
    """
    SELECT id FROM effects
    WHERE {due} AND kind = ANY(:kinds) AND lease IS NULL AND unforeseen < :suspect
    ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
    """
)

# Takes submissions of several customers: of each that has fewer than `at_once` groups under way one group, of `of_one` jobs
# at the most, those first that have waited longest. Customers with the fewest groups under way come first, then who has waited
# longest. What was taken at one time is one group. Only jobs in these two states have an effect of that kind.
LEASE_GROUPS = leasing(
    """
    WITH due AS MATERIALIZED (
        SELECT effects.id, customer, due_at, lease, lease_until
        FROM jobs JOIN effects USING (cluster, job_id)
        WHERE {due} AND kind = 'submit' AND state IN ('READY', 'SUBMITTING')
            AND (lease IS NOT NULL OR unforeseen < :suspect)
    ), busy AS (
        SELECT customer, count(DISTINCT (lease, lease_until)) AS groups FROM due WHERE lease IS NOT NULL GROUP BY customer
    ), waiting AS (
        SELECT id, customer, COALESCE(groups, 0) AS groups, min(due_at) OVER (PARTITION BY customer) AS since,
            row_number() OVER (PARTITION BY customer ORDER BY due_at, id) AS place
        FROM due LEFT JOIN busy USING (customer) WHERE lease IS NULL AND COALESCE(groups, 0) < :at_once
    ), ranked AS (
        SELECT id, place, dense_rank() OVER (ORDER BY groups, since, customer) AS turn FROM waiting
    )
    SELECT id FROM effects
    WHERE id IN (SELECT id FROM ranked WHERE turn <= :most_groups AND place <= :of_one)
        AND done_at IS NULL AND lease IS NULL
    FOR UPDATE SKIP LOCKED
    """
)

# Who takes groups, or a suspect, does it after the one before: each counts what that one has taken.
ONE_TAKER = text("SELECT pg_advisory_xact_lock(:turns, hashtext(CAST(:cluster AS text)))")

HAS_SUSPECTS = text(
    """
    SELECT EXISTS (
        SELECT FROM effects
        WHERE cluster = :cluster AND kind = ANY(:kinds) AND done_at IS NULL AND parked_at IS NULL
            AND failing_since IS NOT NULL AND unforeseen >= :suspect
    )
    """
)

# Takes one suspect, while no other one is carried out in the whole cluster: if the worker dies, it is known of what.
LEASE_SUSPECT = leasing(
    """
    SELECT id FROM effects
    WHERE {due} AND kind = ANY(:kinds) AND lease IS NULL AND failing_since IS NOT NULL AND unforeseen >= :suspect
        AND NOT EXISTS (
            SELECT FROM effects AS other
            WHERE other.cluster = :cluster AND other.done_at IS NULL AND other.failing_since IS NOT NULL
                AND other.lease IS NOT NULL AND other.unforeseen >= :suspect
        )
    ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    """
)

# Lets what is still held, and was not carried out yet, be held for longer.
EXTEND = text(
    """
    UPDATE effects SET lease_until = now() + :lease_s * interval '1 second'
    FROM unnest(CAST(:ids AS bigint[]), CAST(:holders AS bigint[]), CAST(:takings AS bigint[]))
        AS given(id, holder, taking)
    WHERE effects.id = given.id AND done_at IS NULL
        AND lease = given.holder AND takings = given.taking AND lease_until > now()
    """
)

# Frees the leases of holders that are gone and of those that took far too long. Either may be the effect's doing, and counts as
# a failure that was not foreseen; not where the database itself was away, which ends all holders.
FREE_LEASES = text(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, woken_at = NULL,
        unforeseen = unforeseen + counts, failing_since = COALESCE(failing_since, now()),
        last_error = :error,
        parked_at = CASE WHEN counts = 1 AND unforeseen + 1 >= :bound THEN now() END,
        evidence = CASE WHEN counts = 1 AND unforeseen + 1 >= :bound
            THEN jsonb_build_object('reason', CAST(:error AS text), 'attempts', attempts) END
    FROM (
        SELECT id AS freed,
            (lease_until - :lease_s * interval '1 second' > pg_postmaster_start_time())::int AS counts
        FROM effects
        WHERE cluster = :cluster AND done_at IS NULL AND lease IS NOT NULL
            AND (lease_until < now() OR NOT lease = ANY(:alive))
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE id = freed
    RETURNING id, job_id, kind, attempts, parked_at
    """
)

# Effects that are due, that no worker works on, and for which no message was sent lately; `woken` when one was sent since they
# are due.
FORGOTTEN = _returning(
    """
    UPDATE effects SET woken_at = now()
    FROM (
        SELECT id AS due, COALESCE(woken_at >= due_at, false) AS woken FROM effects
        WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()
            AND (woken_at IS NULL OR woken_at < GREATEST(due_at, now() - :again_s * interval '1 second'))
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
