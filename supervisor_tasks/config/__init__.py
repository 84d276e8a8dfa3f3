"""What a process is configured with, and the servers and files that it keeps for itself."""
