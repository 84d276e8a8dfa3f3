"""What several workflows look up in SLURM, and whether it is the ledger's SLURM."""
