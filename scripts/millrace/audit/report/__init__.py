"""The findings as JSON, as text and as a page."""
