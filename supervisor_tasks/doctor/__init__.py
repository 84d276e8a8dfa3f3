"""`supervisor doctor`: tries and judges each part of a fleet, and the services that the
fleet uses.

The probes are in ledger_probes.py, chain_probes.py, slurm_probes.py and grid_probes.py.
probe_runner.py runs them side by side within a time, verdicts.py judges what they have
seen, and check_results.py has the form of a finding.
"""
