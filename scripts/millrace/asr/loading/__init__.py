"""Rows to padded batches: the row table, reading, decoding, collating, worker processes."""
