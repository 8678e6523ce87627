"""The producer of the next epochs: pointers between it and the trainer, folders, the shuffle."""
