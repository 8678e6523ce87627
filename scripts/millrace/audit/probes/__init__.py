"""Probes run the user's loader in processes of their own and write down what it gave."""
