"""What worker machines ask for: to join, and their socket."""
