"""Runs the user's loader in processes of its own, within a time, and notes what it gives."""
