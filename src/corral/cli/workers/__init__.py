"""Commands about worker machines, and the invitations to them."""
