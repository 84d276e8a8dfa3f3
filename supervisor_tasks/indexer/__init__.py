"""The indexer turns the chain's logs into events."""
