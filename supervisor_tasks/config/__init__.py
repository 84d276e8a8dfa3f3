"""The configuration of a process, and its own servers and files."""
