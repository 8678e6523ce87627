"""What of the corpus is published on a Hub, and the card that describes it."""
