"""Millrace: the steps and libraries of a Snakemake workflow for machine-learning training data."""

import sys

if sys.platform == "win32":
    raise ImportError("Millrace needs Linux: on Windows run it in WSL (wsl --install)")
