"""Text of any audio by a trained model: long recordings cut at pauses, batches, a transcriber for Python."""
