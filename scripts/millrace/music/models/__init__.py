"""CLEWS: the network, its configurations, and its published checkpoints."""
