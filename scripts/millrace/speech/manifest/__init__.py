"""Segments of a partition: read, checked, and listed with their error rates."""
