"""The alarms of a fleet, and what workers ask before they begin something new."""
