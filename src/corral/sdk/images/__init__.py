"""Image batches, as a program asks for them."""
