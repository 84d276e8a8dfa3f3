"""How work is run: by one worker at a time, again after a failure, and after which wait."""
