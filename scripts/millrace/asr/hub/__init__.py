"""What of a trained model is published on a Hub, and the card that describes it."""
