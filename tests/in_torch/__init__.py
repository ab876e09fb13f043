"""What runs in an environment of its own: with torch and diffusers, without most of Corral.

Nothing here is collected by the suite itself: `tests/runtime/test_diffusers.py` makes that
environment and starts it.
"""
