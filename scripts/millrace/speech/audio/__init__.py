"""Decoding recordings, cutting segments out of them, and encoding these."""
