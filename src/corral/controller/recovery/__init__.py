"""Starts, and what is done about damage: proof, repair, backup, restore."""
