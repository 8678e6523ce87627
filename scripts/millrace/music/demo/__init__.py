"""The demo corpus: free MIDI tunes, each in several versions, as features with JSONL and splits."""
