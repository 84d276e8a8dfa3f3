"""What a fleet writes for every job. Each statement must work before, during and after
every migration.
"""

# table: a statement that writes to it
STATEMENTS = {
    "jobs": "UPDATE jobs SET updated_at = now() WHERE cluster = 'main' AND job_id = '0xlive'",
    "effects": "UPDATE effects SET attempts = attempts + 1 WHERE cluster = 'main' AND job_id = '0xlive' AND kind = 'fetch'"
    " AND done_at IS NULL",
    "events": "INSERT INTO events (cluster, job_id, name, details, state) VALUES ('main', '0xlive', 'SlurmWaiting', '{}', 'X')",
    "callbacks": "INSERT INTO callbacks (cluster, job_id, slurm_id, status, duration_s, exit_code, peer)"
    " SELECT 'main', '0xlive', 0, 4, COALESCE(max(duration_s), 0) + 1, 0, 'peer' FROM callbacks"
    " WHERE cluster = 'main' AND job_id = '0xlive'",
    "transactions": "UPDATE transactions SET error = 'seen' WHERE chain_id = 1 AND nonce = 3"
    " AND address = '0x' || repeat('3', 40)",
    "signatures": "INSERT INTO signatures (hash, transaction_id, raw, max_fee_wei, priority_fee_wei, head)"
    " SELECT '0x' || md5(clock_timestamp()::text || random()), id, '\\x00', 1, 1, 0 FROM transactions"
    " WHERE chain_id = 1 AND nonce = 3 AND address = '0x' || repeat('3', 40)",
}
