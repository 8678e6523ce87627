"""Loaders of released packages, as their documentation writes them, with tiny data made on the
spot; expected.py says what the audit must find."""
