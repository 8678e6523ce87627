"""Recognisers behind one interface; registry.py names them."""
