"""The clients of the grid's services: job definitions and the customers' job logs."""
