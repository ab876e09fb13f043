"""Stable Diffusion WebUI (AUTOMATIC1111, Forge) over its HTTP API.

The server answers 200 to nearly anything and renders something else; only `info` in its answer
says what. So names are looked up before (`stock`), everything that decides a pixel is sent
(`payloads`), and the answer is held against the request (`truth`).
"""
