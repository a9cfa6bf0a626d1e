"""One batch through the model, and from its loss to new weights."""
