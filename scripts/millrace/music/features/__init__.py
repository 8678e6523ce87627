"""Precomputed CQT features: metadata, splits, HDF5 and .mm layouts, the index, window reading."""
