"""Image classifiers: ResNets of transformers with random weights."""
