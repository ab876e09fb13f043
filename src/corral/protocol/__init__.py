"""The wire between controller and agent."""
