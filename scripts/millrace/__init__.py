"""Millrace: the steps and libraries of a Snakemake workflow for machine-learning training data."""
