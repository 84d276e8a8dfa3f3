"""Sends messages about the alarms to people and other systems, by webhook, mail or
command.
"""
