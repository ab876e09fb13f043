"""Scripts: unpacked, run as a child process, and what ended them."""
