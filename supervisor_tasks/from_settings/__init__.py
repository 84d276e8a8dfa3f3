"""What bootstrap.py makes of the settings."""
