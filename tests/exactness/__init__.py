"""Elastic exactness: loaders of many libraries through random stops, workers, ranks and kills."""
