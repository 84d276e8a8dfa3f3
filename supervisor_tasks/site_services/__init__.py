"""Clients of the site's own services: the directory, and the channels of messages."""
