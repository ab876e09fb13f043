"""Commands about image batches."""
