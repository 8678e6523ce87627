"""Checks turn what the probes saw into findings; they run none of the user's code."""
