"""Prompts: packs of them, the slots in them, LoRAs."""
