"""What the provider offers, and its registration in the contract."""
