"""The process that SLURM's plugins and sshd call: it writes the inbox, and heartbeats."""
