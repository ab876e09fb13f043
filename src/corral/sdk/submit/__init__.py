"""What a caller hands over, made into a submission."""
