"""How a process connects: HTTP with bounds, and the URL of the ledger's Postgres."""
