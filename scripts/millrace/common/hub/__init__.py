"""Publishing files in a repository of a Hugging Face Hub, or of a small Hub of our own."""
