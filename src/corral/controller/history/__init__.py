"""Ended jobs: lists of them, their keys, and how long they are kept."""
