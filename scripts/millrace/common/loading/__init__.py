"""From a dataset to training: plans, workers, shared memory, open files, unusable samples."""
