"""One attempt, in a process of its own. Standard library only: it runs inside job environments."""
