"""Commands about a controller: its life, its home, its measure."""
