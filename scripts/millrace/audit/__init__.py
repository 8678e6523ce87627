"""The audit: runs anybody's data loader for a minute and names its silent bugs and their fix."""
