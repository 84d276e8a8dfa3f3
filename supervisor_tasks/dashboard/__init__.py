"""Pages of our own inside Flower, behind its password: all jobs, and what happened to
one. They read the ledger only.
"""
