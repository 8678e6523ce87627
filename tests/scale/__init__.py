"""Sources at the size that people have: names, sizes and records as they are, no media."""
