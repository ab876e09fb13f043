"""One attempt without an agent: `python -m corral.runtime.standalone TICKET`.

The first process of a container, or a child of whoever starts it. It fetches its order from the
controller, runs it as an agent would, tells all about it through the attempts' door, and ends.
"""
