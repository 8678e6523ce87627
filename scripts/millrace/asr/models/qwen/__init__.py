"""Qwen3-ASR."""
