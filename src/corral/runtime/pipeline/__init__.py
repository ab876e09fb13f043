"""Image pipelines on a worker: one record, stage by stage, on whichever backend the worker has.

Unlike the rest of `runtime` it runs in the environment that Corral itself is installed in, so it
may import what Corral needs.
"""
