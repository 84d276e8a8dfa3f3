"""The fleet's alarms, metrics, probes and guards."""
