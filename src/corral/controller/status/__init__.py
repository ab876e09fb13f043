"""How the controller is and what it did: its condition, numbers and log."""
