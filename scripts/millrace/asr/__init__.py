"""The ASR lane: tar index, duration buckets, batch planner, reader and training."""
