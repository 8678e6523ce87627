"""Tars: headers, members, the index of their addresses."""
