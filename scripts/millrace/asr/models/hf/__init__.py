"""Recognisers of transformers."""
