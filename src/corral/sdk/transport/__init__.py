"""How a program reaches its controller."""
