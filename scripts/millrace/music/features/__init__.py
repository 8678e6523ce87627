"""Precomputed CQT features: metadata and splits, layouts of HDF5 and .mm files, the index, window reading."""
