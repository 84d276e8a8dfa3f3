"""The life of a job: what follows from what happens to it."""
