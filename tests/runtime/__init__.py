"""Tests of the runtime: a real runner process, spoken to the way the agent does."""
