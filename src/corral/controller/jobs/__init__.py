"""What clients do with jobs, part by part: taking them in, reading, cancelling."""
