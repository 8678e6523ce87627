"""What a step trains on: cliques of the splits, anchors of an epoch, windows cut into shingles."""
