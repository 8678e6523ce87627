"""The image lane: image folders into record files, the next epoch's producer, training."""
