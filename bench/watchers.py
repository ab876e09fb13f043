"""Many watchers of one job in one cheap process: WatchJobs over gRPC, spoken on bare sockets.

A thousand streams of a gRPC library would cost more processor time than the controller that is
measured, on the same two cores. gRPC on the wire is little: HTTP/2 frames with length-prefixed
messages in them. What comes back is read with the real message classes, and every line counts.
`python -m bench.watchers ADDRESS JOB WATCHERS STALLED LINES`, the token on stdin.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time

from corral.contract import corral_pb2 as pb
from corral.contract import service

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PER_CONNECTION = 50
WIDE = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: str, value: str) -> bytes:
    """HPACK without its tables: a literal, never indexed."""

    def text(word: str) -> bytes:
        data = word.encode()
        return (bytes([len(data)]) if len(data) < 127 else bytes([127, len(data) - 127])) + data

    return b"\x10" + text(name) + text(value)


class Watcher:
    """What one stream has received."""

    def __init__(self) -> None:
        self.buffer = b""
        self.lines = 0
        self.next_line = 0
        self.in_order = True
        self.partial = b""
        self.ended = False
        self.closed = False
        self.lag_s = 0.0
        self.messages = 0

    def take(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 5:
            (size,) = struct.unpack(">I", self.buffer[1:5])
            if len(self.buffer) < 5 + size:
                return
            self.read(pb.JobEvents.FromString(self.buffer[5 : 5 + size]))
            self.buffer = self.buffer[5 + size :]

    def read(self, message: pb.JobEvents) -> None:
        self.messages += 1
        now = time.time()
        for event in message.events:
            kind = event.WhichOneof("event")
            if kind == "output":
                *lines, self.partial = (self.partial + event.output.data).split(b"\n")
                for line in lines:
                    number, at, _ = line.split(b" ", 2)
                    self.in_order &= int(number) == self.next_line
                    self.next_line += 1
                    self.lag_s = max(self.lag_s, now - float(at))
                self.lines += len(lines)
            self.ended |= kind == "ended"


class Connection:
    """One socket with a number of streams. A stalled one asks and never reads."""

    def __init__(self, address: str, token: str, job: str, streams: int, *, stalled: bool) -> None:
        host, port = address.rsplit(":", 1)
        self.watchers = {1 + 2 * n: Watcher() for n in range(streams)}
        self.buffer = b""
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = b"" if stalled else struct.pack(">HI", 4, WIDE)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        if not stalled:
            grow = struct.pack(">I", WIDE - 65_535)
            self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, grow))
        names = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{service.SERVICE}/WatchJobs"),
            (":authority", address),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("authorization", f"Bearer {token}"),
        ]
        block = b"".join(header(*one) for one in names)
        asked = pb.WatchRequest(job_id=job).SerializeToString()
        body = b"\0" + struct.pack(">I", len(asked)) + asked
        for stream in self.watchers:
            self.socket.sendall(
                frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)
            )

    def receive(self) -> bool:
        """Whether the connection is still open."""
        data = self.socket.recv(1 << 18)
        if not data:
            return False
        self.buffer += data
        place = 0
        while len(self.buffer) - place >= 9:
            size = int.from_bytes(self.buffer[place : place + 3])
            kind, flags, stream = struct.unpack_from(">BBI", self.buffer, place + 3)
            if len(self.buffer) - place < 9 + size:
                break
            payload = self.buffer[place + 9 : place + 9 + size]
            place += 9 + size
            if kind == DATA:
                self.watchers[stream].take(payload)
            if (kind in (DATA, HEADERS) and flags & END_STREAM) or kind == RST_STREAM:
                self.watchers[stream].closed = True
            if kind == PING and not flags & ACK:
                self.socket.sendall(frame(PING, ACK, 0, payload))
            elif kind == SETTINGS and not flags & ACK:
                self.socket.sendall(frame(SETTINGS, ACK, 0))
            elif kind == GOAWAY:
                raise SystemExit(f"the controller hung up: {payload[8:]!r}")
        self.buffer = self.buffer[place:]
        return True

    def begun(self) -> bool:
        return all(watcher.messages for watcher in self.watchers.values())

    def over(self) -> bool:
        return all(watcher.closed for watcher in self.watchers.values())


def main() -> None:
    address, job, count, stalled, lines = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    token = sys.stdin.readline().strip()
    still = [Connection(address, token, job, 1, stalled=True) for _ in range(stalled)]
    listening = [
        Connection(address, token, job, min(PER_CONNECTION, count - first), stalled=False)
        for first in range(0, count, PER_CONNECTION)
    ]
    selector = selectors.DefaultSelector()
    for one in listening:
        selector.register(one.socket, selectors.EVENT_READ, one)
    begun, greeted = time.process_time(), False
    while selector.get_map():
        if not greeted and all(one.begun() for one in listening):
            greeted = True
            print("ready", flush=True)
        for key, _ in selector.select():
            if not key.data.receive() or key.data.over():
                selector.unregister(key.fileobj)
    watchers = [watcher for one in listening for watcher in one.watchers.values()]
    found = {
        "watchers": len(watchers),
        "complete": sum(one.lines == lines and one.in_order and one.ended for one in watchers),
        "fewest_lines": min(one.lines for one in watchers),
        "messages": sum(one.messages for one in watchers),
        "longest_lag_s": max(one.lag_s for one in watchers),
        "client_cpu_s": time.process_time() - begun,
        "stalled": len(still),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
