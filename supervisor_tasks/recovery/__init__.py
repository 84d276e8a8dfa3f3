"""What `job adopt` asks about another fleet."""
