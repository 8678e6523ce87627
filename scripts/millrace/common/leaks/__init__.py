"""Training data that is also held out: how it is found, and what becomes of it."""
