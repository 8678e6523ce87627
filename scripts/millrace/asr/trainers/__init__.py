"""Trainers of other libraries on the batches of `open_loader`."""
