"""What clients and the controller agree on: messages and methods, and values as both show them."""
