"""Text of any audio by a trained model: cut at pauses, in batches, from the shell or Python."""
