"""Webhooks: what they are told, and telling them."""
