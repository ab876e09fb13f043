"""What a record takes: VRAM and effort."""
