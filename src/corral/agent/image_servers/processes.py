"""Which processes are the image servers of this machine: what they hold of a GPU is held for our
jobs, whoever started them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

import psutil

from corral.core.images.backends import ComfyUIEntry, Entry, WebUIEntry

HERE = frozenset({"127.0.0.1", "localhost", "::1"})


def listening(backends: Sequence[Entry]) -> Callable[[], Collection[int]]:
    """Asks who listens where the settings say that a server is."""
    urls = [urlsplit(one.url) for one in backends if isinstance(one, (WebUIEntry, ComfyUIEntry))]
    here = [url for url in urls if url.hostname in HERE]
    ports = {url.port or (443 if url.scheme == "https" else 80) for url in here}

    def ask() -> Collection[int]:
        if not ports:
            return ()
        return {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
            and one.laddr
            and one.laddr.port in ports
            and one.pid
        }

    return ask
