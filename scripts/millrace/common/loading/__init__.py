"""From files to training: folders, plans, workers, shared memory, open files, unusable samples."""
