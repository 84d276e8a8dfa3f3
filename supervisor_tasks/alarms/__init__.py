"""The alarms that the operator can see: their names, and what each one means."""
