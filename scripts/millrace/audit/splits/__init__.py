"""Whether splits of anybody's data share samples: sources, what is compared of them, pairs."""
