"""Features of audio files: decoded, transformed, written into HDF5 chunks."""
