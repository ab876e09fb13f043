"""`corral doctor`: looks at an installation, changes nothing, and says what to do."""
