"""What a process serves to an orchestrator over HTTP. Standard library only: the
reporter runs on slurmctld's host.
"""
