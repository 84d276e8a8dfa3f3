"""Runs of benchmarks on the cluster: submission, results and clean-up."""
