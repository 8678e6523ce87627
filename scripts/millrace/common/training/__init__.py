"""The training loop and its parts: settings, schedule, checkpoints, ranks, logs, the launcher."""
