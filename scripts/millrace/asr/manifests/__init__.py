"""Manifests of samples, by kind of file: which rows they hold and which tars they name."""
