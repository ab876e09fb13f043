"""Documentation that is true: paths exist, nothing is left out, examples run."""
