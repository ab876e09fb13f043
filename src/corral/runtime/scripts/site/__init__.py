"""First on the path of every Python that a script starts; nothing of Corral imports it."""
