"""Hugging Face diffusers, in the process of the job itself."""
