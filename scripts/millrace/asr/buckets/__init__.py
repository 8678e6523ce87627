"""Bucket parquets: edges, rows joined with addresses, files, bucket_config.json."""
