"""The largest batch of every bucket that trains within memory: trials, search, verification."""
