"""ASR as a task of the training loop, and its runs."""
