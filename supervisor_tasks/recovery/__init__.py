"""What `job adopt` asks about another fleet, and the deletion of old rows."""
