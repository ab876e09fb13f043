"""What the controller has not confirmed yet: results and output, kept and sent again."""
