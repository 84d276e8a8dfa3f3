"""How periodic runs are stored, as SQL in the form of the driver, because beat does not use
SQLAlchemy. Pure.
"""

# One statement, so it needs no BEGIN and no COMMIT of its own.
RECORD_RUNS = """
    INSERT INTO periodic_runs (cluster, name, succeeded_at, number) SELECT %(cluster)s, read.name, now(), read.number
    FROM unnest(%(names)s::text[], %(numbers)s::bigint[]) AS read(name, number)
    ON CONFLICT (cluster, name) DO UPDATE SET succeeded_at = now(), number = excluded.number
    """
