"""ComfyUI, over HTTP and WebSocket."""
