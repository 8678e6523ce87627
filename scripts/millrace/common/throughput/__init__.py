"""What the steps of a run took: recorded, profiled, read again."""
