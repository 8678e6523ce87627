"""Where a damaged file's timeline can no longer be trusted, by container."""
