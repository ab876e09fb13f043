"""A function on a worker. Start a controller first (`corral up --detach`), then run this file."""

import os
import platform

import corral


def hello(name: str) -> str:
    print(f"hello, {name}, from process {os.getpid()}")
    return f"{name} was greeted on {platform.node()}"


def main() -> None:
    client = corral.Client()
    print(client.run(hello, args=("world",)))
    squares = client.map(lambda n: n * n, range(10))
    print(list(squares))


if __name__ == "__main__":
    main()
