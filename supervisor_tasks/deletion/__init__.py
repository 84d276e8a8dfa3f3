"""The deletion of old rows of the ledger."""
