"""Image jobs: records, the backends that render them, what is learned from them."""
