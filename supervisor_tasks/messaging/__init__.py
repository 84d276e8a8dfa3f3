"""Celery and Redis, as a hint of when to look at the ledger."""
