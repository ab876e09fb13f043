"""Text of others, made safe to read, show and use as a name."""
