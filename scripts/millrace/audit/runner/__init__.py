"""Runs the user's loader in processes of its own, in time and without a trace, and notes what it gives."""
