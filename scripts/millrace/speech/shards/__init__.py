"""Segments planned into tars, written, indexed and swept."""
