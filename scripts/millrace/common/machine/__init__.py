"""Memory and use of the host and its devices, measured."""
