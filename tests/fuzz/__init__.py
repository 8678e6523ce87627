"""Random damage to files of every kind that is read: `python -m tests.fuzz --count 100000`."""
