"""Steps recorded and profiled, runs compared, the throughput page."""
