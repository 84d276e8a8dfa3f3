"""Tells people and other systems of the alarms, by webhook, mail or command."""
