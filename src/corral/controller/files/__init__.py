"""Bytes of jobs, on the controller's disk and beyond: blobs, artifacts, inputs."""
