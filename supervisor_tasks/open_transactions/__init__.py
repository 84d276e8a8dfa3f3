"""What becomes of the transactions that were sent, and what those still open need."""
