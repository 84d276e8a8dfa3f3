"""The statements by which the gRPC process stores callbacks, for the driver alone.

This module imports nothing: SQLAlchemy would take that process 20 MB.
"""

# Fails where the database does not answer, or has no table of callbacks.
TRY = "SELECT 1 FROM callbacks LIMIT 1"
# A repeat makes no second row. A repeat with a proof makes a row without one proven.
# A repeat about a job that is not ours, without a new proof, does not mark the row
# unread. Otherwise the ledger would keep the row for as long as a stranger repeats
# it. A row that becomes proven was received when its proof came: a customer who knows
# what the hook will report can send a copy of it beforehand. Nor does a repeat
# without a proof mark a proven row unread: a worker would believe it.
_INSERT = "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer, proof, unknown_job)"
_NOW_PROVEN = "(excluded.proof = 'proven' AND callbacks.proof <> 'proven')"
_REPEAT = f"""
    ON CONFLICT ON CONSTRAINT callbacks_content DO UPDATE SET read_at = NULL,
        proof = CASE WHEN {_NOW_PROVEN} THEN excluded.proof ELSE callbacks.proof END,
        peer = CASE WHEN {_NOW_PROVEN} THEN excluded.peer ELSE callbacks.peer END,
        received_at = CASE WHEN {_NOW_PROVEN} THEN now() ELSE callbacks.received_at END
    WHERE {_NOW_PROVEN}
        OR (callbacks.read_at < now() - %(again_s)s * interval '1 second'
            AND NOT (callbacks.unknown_job OR excluded.unknown_job)
            AND (callbacks.proof <> 'proven' OR excluded.proof = 'proven'))
    """
INSERT = f"""{_INSERT}
    VALUES (%(cluster)s, %(job_id)s, %(slurm_id)s, %(status)s, %(duration_s)s, %(exit_code)s,
        %(peer)s, %(proof)s, %(unknown_job)s) {_REPEAT}"""
# Stores callbacks about jobs of ours under their SLURM ids, as far as there is room for
# each, and returns the places of these in the arrays. No two may have the same content.
# About a job that is over, callbacks without a proof have less room. Job ids are on
# chain and SLURM ids are consecutive, so a stranger can name both, and the rows are
# kept for as long as the job's. `+ 0` keeps the planner from the index of SLURM ids,
# where it would read all jobs that ever had that id. LATERAL with a LIMIT: each job is
# looked up by its id, and no plan reads all jobs to join them.
INSERT_OURS = f"""
    WITH said AS (
        SELECT *, row_number() OVER (PARTITION BY job_id, slurm_id, proof = 'proven' ORDER BY place) AS number
        FROM unnest(CAST(%(job_ids)s AS text[]), CAST(%(slurm_ids)s AS bigint[]), CAST(%(statuses)s AS smallint[]),
            CAST(%(durations_s)s AS bigint[]), CAST(%(exit_codes)s AS bigint[]), CAST(%(peers)s AS text[]),
            CAST(%(proofs)s AS text[]))
            WITH ORDINALITY AS given(job_id, slurm_id, status, duration_s, exit_code, peer, proof, place)
    ), ours AS MATERIALIZED (
        SELECT said.* FROM said CROSS JOIN LATERAL (
            SELECT state FROM jobs
            WHERE jobs.cluster = %(cluster)s AND jobs.job_id = said.job_id AND jobs.slurm_id + 0 = said.slurm_id LIMIT 1
        ) AS job
        WHERE number + (
            SELECT count(*) FROM (
                SELECT FROM callbacks AS kept WHERE kept.cluster = %(cluster)s AND kept.job_id = said.job_id
                    AND kept.slurm_id = said.slurm_id AND (kept.proof = 'proven') = (said.proof = 'proven') LIMIT %(most)s
            ) AS found
        ) <= CASE WHEN said.proof <> 'proven' AND job.state IN ('SETTLED', 'REFUSED') THEN %(most_over)s ELSE %(most)s END
    ), stored AS (
        {_INSERT}
        SELECT %(cluster)s, job_id, slurm_id, status, duration_s, exit_code, peer, proof, false FROM ours ORDER BY place
        {_REPEAT}
    )
    SELECT place FROM ours
    """  # noqa: S608  no part comes from outside

# What the ledger knows of the jobs in the callbacks, and how many callbacks it keeps
# about each job under that SLURM id, proven and others counted apart.
KNOWN = """
    SELECT wanted.job_id, wanted.slurm_id, wanted.proven,
        job.job_id IS NOT NULL AS known, job.slurm_id AS given_id, job.state, (
            SELECT count(*) FROM (
                SELECT FROM callbacks AS kept WHERE kept.cluster = %(cluster)s AND kept.job_id = wanted.job_id
                    AND kept.slurm_id = wanted.slurm_id AND (kept.proof = 'proven') = wanted.proven LIMIT %(most)s
            ) AS found
        ) AS kept
    FROM unnest(CAST(%(job_ids)s AS text[]), CAST(%(slurm_ids)s AS bigint[]), CAST(%(proven)s AS boolean[]))
        AS wanted(job_id, slurm_id, proven)
    LEFT JOIN LATERAL (
        SELECT job_id, slurm_id, state FROM jobs WHERE jobs.cluster = %(cluster)s AND jobs.job_id = wanted.job_id LIMIT 1
    ) AS job ON true
    """

# How many callbacks the ledger keeps about a job that has no SLURM id yet, under all
# ids.
KEPT_EARLY = """
    SELECT count(*) FROM (
        SELECT FROM callbacks WHERE cluster = %(cluster)s AND job_id = %(job_id)s
            AND (proof = 'proven') = %(proven)s LIMIT %(most)s
    ) AS found
    """
# How many callbacks the ledger keeps about all jobs that it did not know.
KEPT_UNKNOWN = """
    SELECT count(*) FROM (
        SELECT FROM callbacks WHERE cluster = %(cluster)s AND unknown_job AND (proof = 'proven') = %(proven)s LIMIT %(most)s
    ) AS found
    """

# Whether the process may acknowledge a callback that it does not store: the ledger has
# it already, or the job is over and no callback about it counts.
NEEDLESS = """
    SELECT EXISTS (
        SELECT FROM callbacks WHERE cluster = %(cluster)s AND job_id = %(job_id)s AND slurm_id = %(slurm_id)s
            AND status = %(status)s AND duration_s = %(duration_s)s AND exit_code = %(exit_code)s
    ) OR EXISTS (SELECT FROM jobs WHERE cluster = %(cluster)s AND job_id = %(job_id)s AND state IN ('SETTLED', 'REFUSED'))
    """
