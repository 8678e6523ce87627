"""From a dataset to training: plans, workers, shared memory, open files, samples that cannot be used."""
