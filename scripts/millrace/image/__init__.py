"""The image lane: image folders into record files, the next epoch made while one trains, training."""
