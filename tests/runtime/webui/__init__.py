"""The WebUI backend against a server that sets every trap of the real one."""
