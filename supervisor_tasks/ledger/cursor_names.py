"""The names of the cursors: how far which reading of the chain has come. Pure."""

CONTRACT_STREAM = "contract"  # the scan for the events of our jobs
# it goes backwards: the ledger has all claims since that block
HISTORY_STREAM = "history"
CUSTOMERS_STREAM = "customers"  # the customers that have requested a job
