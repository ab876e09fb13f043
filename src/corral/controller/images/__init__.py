"""Image batches: plans, presets, and what is learned from them."""
