"""The client of SLURM, over SSH or slurmrestd: submissions, questions and orders."""
