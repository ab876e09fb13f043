"""Image servers on this machine: what they have, and starting them again."""
