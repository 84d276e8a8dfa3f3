"""The SQL statements of the outbox. Each handles any number of effects in one round
trip.
"""

from sqlalchemy import TextClause, text

from supervisor_tasks.ledger.worker_sessions import ALIVE_SESSIONS

# The columns of an OpenEffect.
_EFFECT = """effects.id, COALESCE(effects.job_id, effects.subject) AS subject, effects.kind, effects.generation,
        effects.attempts, effects.unexpected_failures, effects.contract_rejections,
        COALESCE(effects.lease, 0) AS holder, effects.lease_token,
        GREATEST(EXTRACT(EPOCH FROM effects.due_at - now()), 0)::float8 AS due_in_s"""


def _returning(statement: str, *columns: str) -> TextClause:
    return text(f"{statement} RETURNING {', '.join((_EFFECT, *columns))}")


# Opens effects. An effect that is already open is brought forward, and its count of
# demands goes up by one. A parked effect is tried once more, because the new event may
# help; if it does not, the effect is parked again at its first failure. A demand for
# later (from a caller that has sent too many callbacks) leaves the effect parked.
# Otherwise the effect would be tried at once, and any caller could have it tried as
# often as it likes.
OPEN = _returning(
    """
    INSERT INTO effects (cluster, job_id, kind, due_at, notified_at)
    SELECT :cluster, wanted.job_id, wanted.kind, now() + wanted.due_in_s * interval '1 second', now()
    FROM unnest(CAST(:job_ids AS text[]), CAST(:kinds AS text[]), CAST(:dues AS float8[]))
        AS wanted(job_id, kind, due_in_s)
    ON CONFLICT (cluster, job_id, kind) WHERE done_at IS NULL
    DO UPDATE SET due_at = LEAST(effects.due_at, EXCLUDED.due_at), generation = effects.generation + 1, notified_at = now(),
        parked_at = CASE WHEN EXCLUDED.due_at > now() THEN effects.parked_at END
    """,
    "lease",
    "parked_at",
)

# Opens an effect for each of these subjects that are no jobs. A subject that ever had
# one of that kind gets none.
REQUEST = text(
    """
    INSERT INTO effects (cluster, kind, subject, due_at)
    SELECT :cluster, :kind, wanted.subject, now() FROM unnest(CAST(:subjects AS text[])) AS wanted(subject)
    ON CONFLICT (cluster, kind, subject) WHERE subject IS NOT NULL DO NOTHING
    """
)

# Opens the effect `account` for the customers of jobs that wait for their submission.
# A customer who ever had one gets none. LATERAL, as in CLOSE: otherwise the effects of
# all customers are read.
REQUEST_ACCOUNTS = text(
    """
    INSERT INTO effects (cluster, kind, subject, due_at)
    SELECT :cluster, 'account', customer, now()
    FROM (
        SELECT DISTINCT customer FROM jobs WHERE cluster = :cluster AND state IN ('CLAIMED', 'READY', 'SUBMITTING')
    ) AS waiting LEFT JOIN LATERAL (
        SELECT id AS earlier FROM effects
        WHERE cluster = :cluster AND kind = 'account' AND subject = waiting.customer LIMIT 1
    ) AS accounts ON true
    WHERE earlier IS NULL
    ON CONFLICT (cluster, kind, subject) WHERE subject IS NOT NULL DO NOTHING
    """
)

# Which of these leases still hold their effects. The rows stay locked until the
# transaction ends. Each lease has a token of its own: the same process may
# have lost the effect and leased it again meanwhile.
HELD = text(
    """
    SELECT effects.id FROM effects
    JOIN unnest(CAST(:ids AS bigint[]), CAST(:holders AS bigint[]), CAST(:lease_token AS bigint[]))
        AS given(id, holder, lease_token) ON given.id = effects.id
    WHERE done_at IS NULL AND lease = given.holder AND effects.lease_token = given.lease_token AND lease_until > now()
    ORDER BY effects.id FOR UPDATE OF effects
    """
)

# Ends effects that their holder has carried out. Each is done, or due again in
# `due_in_s`, or due at once if a demand came in meanwhile. An effect that was carried
# out without a result still counts as failing: it has had no result, and its next step does not
# change that.
END = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = ended.failure_reason, notified_at = now(),
        attempts = CASE WHEN ended.failure_reason IS NULL THEN 0 ELSE attempts END,
        failing_since = CASE WHEN ended.failure_reason IS NOT NULL THEN COALESCE(failing_since, now()) END,
        unexpected_failures = 0, contract_rejections = 0, evidence = NULL,
        done_at = CASE WHEN effects.generation = ended.generation AND ended.due_in_s IS NULL THEN now() END,
        due_at = CASE WHEN effects.generation = ended.generation
            THEN now() + COALESCE(ended.due_in_s, 0) * interval '1 second' ELSE LEAST(effects.due_at, now()) END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:generation AS int[]), CAST(:dues AS float8[]), CAST(:holders AS bigint[]),
        CAST(:lease_token AS bigint[]), CAST(:failure_reason AS text[]))
        AS ended(id, generation, due_in_s, holder, lease_token, failure_reason)
    WHERE effects.id = ended.id AND effects.done_at IS NULL
        AND effects.lease = ended.holder AND effects.lease_token = ended.lease_token
    """,
    "parked_at",
    "done_at",
)

# Closes the open effects of these (job, kind) pairs, even while a worker works on them.
# A pair is one step down an index, by the LATERAL. The planner's figures of a ledger
# that fills up are old, so it reads all open effects for each pair otherwise. That took
# 25 ms instead of 1 ms in a burst of 1,000 jobs.
CLOSE = text(
    """
    UPDATE effects SET done_at = now(), lease = NULL, lease_until = NULL
    FROM unnest(CAST(:job_ids AS text[]), CAST(:kinds AS text[])) AS pointless(job_id, kind)
    CROSS JOIN LATERAL (
        SELECT id FROM effects
        WHERE cluster = :cluster AND effects.job_id = pointless.job_id AND effects.kind = pointless.kind AND done_at IS NULL
        LIMIT 1
    ) AS opened
    WHERE effects.id = opened.id
    """
)

_DUE_OF_OPENED = "parked_at IS NULL AND due_at <= now() + interval '20 milliseconds'"
_DUE = f"cluster = :cluster AND done_at IS NULL AND {_DUE_OF_OPENED}"
# MATERIALIZED: chosen once. A plan that chooses again for each row would lease more than
# the LIMIT, as the rows that it has locked are skipped the second time.
_LEASE_CHOSEN = """
    WITH chosen AS MATERIALIZED ({chosen})
    UPDATE effects SET lease = :holder, lease_until = now() + :lease_s * interval '1 second', attempts = attempts + 1,
        lease_token = lease_token + 1
    WHERE id IN (SELECT id FROM chosen)
    """


def leasing(chosen: str) -> TextClause:
    """A statement that leases the effects whose ids `chosen` selects. `{due}` in it
    becomes the due condition, `{due_of_opened}` that of a row which is known to be an
    open effect of the cluster.
    """
    return _returning(
        _LEASE_CHOSEN.format(
            chosen=chosen.format(due=_DUE, due_of_opened=_DUE_OF_OPENED)
        )
    )


# Leases effects that are due and that no worker works on. LEASE_ISOLATED leases those that
# have failed before. Two workers never lease the same effect.
LEASE = leasing(
    """
    SELECT id FROM effects
    WHERE {due} AND kind = ANY(:kinds) AND lease IS NULL AND unexpected_failures < :isolated_after
    ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
    """
)

# As LEASE, for cancellations. Those of jobs with a SLURM id come a minute before others:
# they end time that is paid for. Most of the others are looks at SLURM, four for each
# rejected job, and a customer can have thousands of rejected jobs.
LEASE_CANCELLATIONS = leasing(
    """
    SELECT id FROM effects
    WHERE {due} AND kind = 'cancel' AND lease IS NULL AND unexpected_failures < :isolated_after
    ORDER BY due_at + CASE WHEN (
        SELECT slurm_id FROM jobs WHERE jobs.cluster = effects.cluster AND jobs.job_id = effects.job_id
    ) IS NULL THEN interval '1 min' ELSE interval '0' END
    LIMIT :most FOR UPDATE SKIP LOCKED
    """
)

# Whether a lease of these kinds may find something.
ANY_DUE = text(
    f"SELECT EXISTS (SELECT FROM effects WHERE {_DUE} AND kind = ANY(:kinds) AND lease IS NULL)"  # noqa: S608
)

# Leases submissions of several customers: one group of each customer that has fewer than
# `at_once` groups under way. A group has at most `of_one` jobs, those that have waited
# longest. Customers with the fewest groups under way come first, then those that have
# waited longest. Effects of one customer that were leased at the same time are one
# group. Only jobs in these two states have an effect of that kind. LATERAL, as in
# CLOSE.
LEASE_GROUPS = leasing(
    """
    WITH due AS MATERIALIZED (
        SELECT opened.id, customer, due_at, lease, lease_until
        FROM jobs CROSS JOIN LATERAL (
            SELECT * FROM effects
            WHERE cluster = :cluster AND effects.job_id = jobs.job_id AND kind = 'submit' AND done_at IS NULL LIMIT 1
        ) AS opened
        WHERE jobs.cluster = :cluster AND state IN ('READY', 'SUBMITTING') AND {due_of_opened}
            AND (lease IS NOT NULL OR unexpected_failures < :isolated_after)
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

# Workers lease groups, and isolated effects, one worker at a time: each
# must see what the one before it has leased.
LEASING_LOCK = text(
    "SELECT pg_advisory_xact_lock(:lock_class, hashtext(CAST(:cluster AS text)))"
)

# An effect that is carried out isolated.
_TO_ISOLATE = (
    f"{_DUE} AND kind = ANY(:kinds) AND lease IS NULL"
    " AND failing_since IS NOT NULL AND unexpected_failures >= :isolated_after"
)

# Whether LEASE_ISOLATED may find something.
ANY_TO_ISOLATE = text(f"SELECT EXISTS (SELECT FROM effects WHERE {_TO_ISOLATE})")  # noqa: S608

# Leases one effect whose worker died, or that failed unexpectedly, `isolated_after` times
# in a row, while no other such effect is carried out in the whole cluster. If the
# worker dies again, the cause is known.
LEASE_ISOLATED = leasing(
    f"""
    SELECT id FROM effects
    WHERE {_TO_ISOLATE}
        AND NOT EXISTS (
            SELECT FROM effects AS other
            WHERE other.cluster = :cluster AND other.done_at IS NULL AND other.failing_since IS NOT NULL
                AND other.lease IS NOT NULL AND other.unexpected_failures >= :isolated_after
        )
    ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    """  # noqa: S608
)

# Extends the leases of effects that are still held and not carried out yet.
EXTEND = text(
    """
    UPDATE effects SET lease_until = now() + :lease_s * interval '1 second'
    FROM unnest(CAST(:ids AS bigint[]), CAST(:holders AS bigint[]), CAST(:lease_token AS bigint[]))
        AS given(id, holder, lease_token)
    WHERE effects.id = given.id AND done_at IS NULL
        AND lease = given.holder AND effects.lease_token = given.lease_token AND lease_until > now()
    """
)

# Frees the leases of holders that are gone, and leases that have run out. The effect
# may be the cause of either, so it counts as an unexpected failure; but not if the
# database has started since the lease, because that ends all holders.
FREE_LEASES = text(
    f"""
    UPDATE effects SET lease = NULL, lease_until = NULL, notified_at = NULL,
        unexpected_failures = unexpected_failures + counts, failing_since = COALESCE(failing_since, now()),
        last_error = :error,
        parked_at = CASE WHEN counts = 1 AND unexpected_failures + 1 >= :bound THEN now() END,
        evidence = CASE WHEN counts = 1 AND unexpected_failures + 1 >= :bound
            THEN jsonb_build_object('reason', CAST(:error AS text), 'attempts', attempts) END
    FROM (
        SELECT id AS freed,
            (lease_until - :lease_s * interval '1 second' > pg_postmaster_start_time())::int AS counts
        FROM effects
        WHERE cluster = :cluster AND done_at IS NULL AND lease IS NOT NULL
            AND (lease_until < now() OR NOT lease = ANY(ARRAY({ALIVE_SESSIONS})))
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE id = freed
    RETURNING id, COALESCE(job_id, subject) AS subject, kind, attempts, parked_at
    """  # noqa: S608  only constants
)

# Effects of these kinds that are due, that no worker works on, and for which no message
# was sent lately. At most so many of each kind are chosen, as the workers of one kind
# may be away. `notified`: a message was sent since the effect became due.
DUE_WITHOUT_MESSAGE = _returning(
    """
    UPDATE effects SET notified_at = now()
    FROM (
        SELECT id AS due, notified FROM unnest(CAST(:kinds AS text[])) AS wanted, LATERAL (
            SELECT id, COALESCE(notified_at >= due_at, false) AS notified FROM effects
            WHERE cluster = :cluster AND done_at IS NULL AND parked_at IS NULL AND lease IS NULL AND due_at <= now()
                AND (notified_at IS NULL OR notified_at < GREATEST(due_at, now() - :again_s * interval '1 second'))
                AND kind = wanted
            ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED
        ) AS of_a_kind
    ) AS due_without_message
    WHERE id = due
    """,
    "notified",
)

# Gives back effects that are held. They are due again later, or at once if a demand
# came in meanwhile. The counts change so: `attempts` returns to 0 without an error, and
# also if the effect only waits; then only its waiting time is counted.
# `unexpected_failures` returns to 0 unless this failure was unexpected.
# `contract_rejections` survive other failures. They return to 0 without an error, but
# not if a demand came in while the effect was held: that demand may be about a new
# rejection.
POSTPONE = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = :error, notified_at = NULL,
        attempts = CASE WHEN CAST(:error AS text) IS NULL OR :waits THEN 0 ELSE attempts END,
        unexpected_failures = CASE WHEN :unexpected THEN unexpected_failures + 1 ELSE 0 END,
        contract_rejections = CASE WHEN :rejected THEN contract_rejections + 1
            WHEN CAST(:error AS text) IS NULL AND effects.generation = given.generation THEN 0 ELSE contract_rejections END,
        failing_since = CASE WHEN CAST(:error AS text) IS NOT NULL THEN COALESCE(failing_since, now()) END,
        due_at = CASE WHEN effects.generation = given.generation
            THEN now() + :due_in_s * interval '1 second' ELSE LEAST(effects.due_at, now()) END
    FROM unnest(CAST(:ids AS bigint[]), CAST(:generation AS int[]), CAST(:holders AS bigint[]), CAST(:lease_token AS bigint[]))
        AS given(id, generation, holder, lease_token)
    WHERE effects.id = given.id AND effects.done_at IS NULL
        AND effects.lease = given.holder AND effects.lease_token = given.lease_token
    """,
    "parked_at",
)

# Parks effects until an operator decides or a new demand comes in. A demand that came
# in while the effect was being carried out also counts: then the effect is due at once,
# and is not parked.
PARK = _returning(
    """
    UPDATE effects SET lease = NULL, lease_until = NULL, last_error = given.error,
        failing_since = COALESCE(failing_since, now()),
        evidence = CAST(given.evidence AS jsonb) || jsonb_build_object('attempts', attempts),
        parked_at = CASE WHEN effects.generation = given.generation THEN now() END, due_at = LEAST(due_at, now()),
        notified_at = now()
    FROM unnest(CAST(:ids AS bigint[]), CAST(:generation AS int[]), CAST(:holders AS bigint[]),
        CAST(:lease_token AS bigint[]), CAST(:errors AS text[]), CAST(:evidence AS text[]))
        AS given(id, generation, holder, lease_token, error, evidence)
    WHERE effects.id = given.id AND effects.done_at IS NULL
        AND effects.lease = given.holder AND effects.lease_token = given.lease_token
    """,
    "parked_at",
)

# How many effects are parked; and how many are overdue, that is, fail for long and are
# still tried, with their figures. One that waits for the end of a pause is not overdue:
# the operator, or the alarm that goes with a sweep's pause, knows of it.
ALARM_SUMMARY = text(
    """
    SELECT count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
        count(*) FILTER (WHERE overdue) AS overdue,
        COALESCE(max(attempts) FILTER (WHERE overdue), 0) AS most_tries,
        COALESCE(max(EXTRACT(EPOCH FROM now() - failing_since)) FILTER (WHERE overdue), 0)::float8 AS longest_s,
        (array_agg(last_error ORDER BY failing_since) FILTER (WHERE overdue))[1] AS last_error
    FROM (
        SELECT *, parked_at IS NULL AND (attempts > :overdue_tries
            OR failing_since < now() - :overdue_s * interval '1 second')
            AND left(COALESCE(last_error, ''), length(:paused)) <> :paused AS overdue
        FROM effects WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL
    ) AS failing
    """
)

# How many effects have failed for at least `for_s` seconds with a last error that
# begins with `beginning`; up to five of the different errors, and of the subjects.
FAILING_WITH = text(
    """
    SELECT count(*) AS effects, COALESCE((array_agg(DISTINCT last_error))[1:5], ARRAY[]::text[]) AS errors,
        COALESCE((array_agg(COALESCE(job_id, subject) ORDER BY failing_since, id))[1:5], ARRAY[]::text[]) AS subjects
    FROM effects WHERE cluster = :cluster AND done_at IS NULL AND starts_with(last_error, :beginning)
        AND failing_since <= now() - :for_s * interval '1 second'
    """
)

# Starts effects of these kinds over that are parked, or that have failed and wait for
# their next try: all, one job's, or one by id.
RETRY = _returning(
    """
    UPDATE effects SET parked_at = NULL, due_at = now(), notified_at = NULL, attempts = 0, unexpected_failures = 0,
        contract_rejections = 0,
        failing_since = NULL
    WHERE cluster = :cluster AND done_at IS NULL AND failing_since IS NOT NULL AND lease IS NULL
        AND kind = ANY(:kinds)
        AND (CAST(:effect_id AS bigint) IS NULL OR id = :effect_id)
        AND (CAST(:job_id AS text) IS NULL OR job_id = :job_id)
    """,
)

# Ends an effect that was not carried out, if it has been parked since this moment.
ABANDON = _returning(
    """
    UPDATE effects SET done_at = now()
    WHERE cluster = :cluster AND id = :id AND done_at IS NULL AND parked_at = :parked_at
    """,
)

# Makes all open effects of these kinds due, and tries parked ones once more: settings,
# or what is wanted, have changed.
BRING_FORWARD = text(
    """
    UPDATE effects SET due_at = LEAST(due_at, now()), generation = generation + 1, notified_at = NULL, parked_at = NULL
    WHERE cluster = :cluster AND kind = ANY(:kinds) AND done_at IS NULL
    """
)

# Brings forward effects that wait for their next try: the thing that they waited for
# will not happen.
RESCHEDULE_NOW = text(
    """
    UPDATE effects SET due_at = LEAST(due_at, now()), generation = generation + 1, notified_at = NULL,
        last_error = COALESCE(CAST(:error AS text), last_error),
        contract_rejections = CASE WHEN CAST(:error AS text) IS NULL THEN contract_rejections ELSE contract_rejections + 1 END,
        failing_since = CASE WHEN CAST(:error AS text) IS NULL THEN failing_since ELSE COALESCE(failing_since, now()) END
    WHERE cluster = :cluster AND job_id = ANY(:job_ids) AND kind = ANY(:kinds) AND done_at IS NULL AND parked_at IS NULL
    """
)
