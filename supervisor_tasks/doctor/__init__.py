"""`supervisor doctor`: each part of a fleet, and of what it works with, is tried and judged.

model.py has what a probe finds. verdicts.py judges it, without acting. probes.py, chain_probes.py, slurm_probes.py and
grid_probes.py ask, and examination.py runs all probes side by side within a time.
"""
