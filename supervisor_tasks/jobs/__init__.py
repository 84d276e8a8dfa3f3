"""The life of a job: its events, its states, and the work that follows."""
