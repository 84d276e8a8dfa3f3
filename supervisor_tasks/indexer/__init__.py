"""The chain's logs become events."""
