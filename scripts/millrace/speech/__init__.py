"""The speech lane: aligned recordings in, WebDataset shards out."""
