"""A module beside the entry."""

SENTENCE = "A big card has {size} of memory."
