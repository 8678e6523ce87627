"""Alignment files and audio files as they lie on disk, and the split of each recording."""
