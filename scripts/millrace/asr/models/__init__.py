"""Recognisers behind one interface; known.py names them, registry.py builds and loads them."""
