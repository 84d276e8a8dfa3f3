"""Celery and Redis. A message is only a hint to read the ledger."""
