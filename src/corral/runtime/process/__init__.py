"""What the runtime asks of the system, POSIX or Windows, and of its processes."""
