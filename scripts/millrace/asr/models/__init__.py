"""Recognisers behind one interface; choice.py names them, registry.py builds and loads them."""
