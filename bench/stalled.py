"""Readers that ask to follow a job and then never read, in a process of their own: over REST and,
one in five, over gRPC. `python -m bench.stalled HTTP_PORT GRPC_ADDRESS JOB COUNT`, the token on
stdin; says `ready` when all are connected, and goes on until stdin closes."""

from __future__ import annotations

import resource
import socket
import sys
import time

from bench.watchers import Connection

OVER_GRPC = 5
"""Every so manieth."""
PER_S = 250.0


def main() -> None:
    port, address, job, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    token = sys.stdin.readline().strip()
    asked = (
        f"GET /jobs/{job}/events HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n"
        "accept: text/event-stream\r\n\r\n"
    ).encode()
    kept: list[object] = []
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number / PER_S - time.monotonic()))
        if number % OVER_GRPC:
            reader = socket.create_connection(("127.0.0.1", port))
            reader.sendall(asked)
            kept.append(reader)
        else:
            kept.append(Connection(address, token, job, 1, stalled=True))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
