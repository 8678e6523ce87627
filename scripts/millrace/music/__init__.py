"""Music lane: precomputed CQT features to version-matching training."""
