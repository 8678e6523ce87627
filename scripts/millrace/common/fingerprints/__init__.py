"""Fingerprints of sound: copies are found whatever cut, codec, rate or level they have."""
