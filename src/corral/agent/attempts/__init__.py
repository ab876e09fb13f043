"""The attempts of this worker: those that wait, run, and ended."""
