"""Image classification as a task of the training loop: plans, crops, batches, runs, their page."""
