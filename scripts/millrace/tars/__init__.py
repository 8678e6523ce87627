"""Any tars as training data: an index on first use, samples by key, batches in a shuffled order."""
