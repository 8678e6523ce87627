"""Trainers of other libraries, killed and resumed with other ranks."""
