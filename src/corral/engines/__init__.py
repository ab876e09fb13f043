"""Ways to reach workers."""
