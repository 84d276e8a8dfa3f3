"""What an operator sees of the fleet, and how it is guarded."""
