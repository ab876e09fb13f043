"""One POST: over TLS, past interim answers, and never longer than its time limit."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from corral.controller.webhooks.delivery import NotDelivered, post
from corral.core.webhook import address_of


async def _serve(
    answer: bytes, pause_s: float, tls: ssl.SSLContext | None = None
) -> tuple[int, asyncio.Server]:
    """Answers byte by byte, with a pause after each, and never hangs up first."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for at in range(len(answer)):
                writer.write(answer[at : at + 1])
                await writer.drain()
                if pause_s:
                    await asyncio.sleep(pause_s)
            await reader.read()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=tls)
    return server.sockets[0].getsockname()[1], server


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that nobody trusts, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a key")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2"
    make += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *make.split()], check=True, capture_output=True)
    return certificate, key


async def test_over_tls_and_only_with_a_certificate_that_is_trusted(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = pair
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    port, server = await _serve(answer, 0.0, tls)
    async with server:
        address = address_of(f"https://localhost:{port}/hook")
        with pytest.raises(NotDelivered, match="certificate verify failed"):
            await post(address, {}, b"{}", 20.0)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with asyncio.timeout(20):
            await post(address, {}, b"{}", 10.0)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\nA: b\r\n" * 99]
)
async def test_an_answer_that_drips_is_not_waited_for(answer: bytes) -> None:
    port, server = await _serve(answer, 0.5)
    async with server, asyncio.timeout(20):
        with pytest.raises(NotDelivered, match="no answer within"):
            await post(address_of(f"http://127.0.0.1:{port}/"), {}, b"{}", 0.3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://a..b/", "http://name.invalid/"])
async def test_nobody_there_is_a_reason_and_no_surprise(url: str) -> None:
    with pytest.raises(NotDelivered):
        await post(address_of(url), {}, b"{}", 20.0)
