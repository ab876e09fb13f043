"""What all commands share: how they print, and how they find what a person means."""
