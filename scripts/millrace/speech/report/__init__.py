"""The corpus report: numbers, figures, page."""
