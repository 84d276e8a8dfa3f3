"""All SQL: the tables, the queries, and the leases of effects."""
