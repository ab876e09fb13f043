"""The local door: a socket for programs on the controller's own machine."""
