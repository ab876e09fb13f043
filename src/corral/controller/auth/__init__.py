"""Who may come in, as client or as worker, and the secrets of a home."""
