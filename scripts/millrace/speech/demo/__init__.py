"""The demo corpus: prompts of Debian's packages, assembled into aligned recordings."""
