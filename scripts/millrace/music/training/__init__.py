"""Training a version matcher: augmentations, loss, distances between tracks, metrics."""
