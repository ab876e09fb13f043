"""Files that attempts ask for: inputs, and models on this worker's disk."""
