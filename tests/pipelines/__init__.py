"""Building image jobs: what the rules say, written out by hand, and what must always hold."""
