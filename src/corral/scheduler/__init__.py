"""Pure decisions: what fits, what goes first, where it runs, and what an ending means."""
