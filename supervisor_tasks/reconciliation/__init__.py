"""The sweep: compares the ledger, the contract and SLURM, and records what follows."""
