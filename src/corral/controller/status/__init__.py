"""What the controller did: its numbers and its log."""
