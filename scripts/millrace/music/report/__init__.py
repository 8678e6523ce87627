"""The report page of version matching."""
