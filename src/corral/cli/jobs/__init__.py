"""Commands about jobs: run, look, change, fetch."""
