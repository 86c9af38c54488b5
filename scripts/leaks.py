#!/usr/bin/env python3
"""Many requests to `leasehold serve`, and what it keeps of them: nothing.

The binary is target/debug/leasehold, or $LEASEHOLD_BINARY. Granted and refused requests of all kinds go to a bounded
number of keys, over connections that come and go. The service is measured after each quarter. Fails if its memory, file
descriptors, threads, lines of metrics or files grow from the end of the second quarter to the end of the last.
"""

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("LEASEHOLD_BINARY", str(ROOT / "target" / "debug" / "leasehold"))
CONNECTIONS = 16
ROUNDS_OF_CONNECTION = 20
KEYS_OF_CONNECTION = 8


class Size(NamedTuple):
    """What the service keeps."""

    kilobytes: int
    descriptors: int
    threads: int
    metrics: int
    file_kilobytes: int


NOISE = Size(kilobytes=5 * 1024, descriptors=4, threads=4, metrics=50, file_kilobytes=3 * 1024)
"""Growth over half of the requests that is none. A leak of 21 bytes a request shows in 500,000 requests."""


class Service:
    """A running service with a database in a file, and tokens."""

    def __init__(self, folder: Path) -> None:
        """Starts the service in an empty folder."""
        self.folder = folder
        command = [BINARY, "token", "me", "--file", "tokens.json"]
        self.token = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
        command = [BINARY, "serve", "--db", "leasehold.db", "--listen", "127.0.0.1:0", "--token-file", "tokens.json"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.host, self.port = self.url.split("//")[1].rsplit(":", 1)

    def request(self, method: str, path: str, body: object = None, token: str | None = None) -> bytes:
        """The bytes of a request."""
        text = "" if body is None else body if isinstance(body, str) else json.dumps(body)
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Authorization: Bearer {token or self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}"
        ).encode()

    def size(self) -> Size:
        """Measures the service, which has nothing to do."""
        process = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        request = urllib.request.Request(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            metrics = len(answer.read().splitlines())
        return Size(
            int(status["VmRSS"].split()[0]),
            len(list((process / "fd").iterdir())),
            int(status["Threads"]),
            metrics,
            sum(file.stat().st_size for file in self.folder.glob("leasehold.db*")) // 1024,
        )


def round_of(service: Service, key: str, number: int) -> list[tuple[bytes, int]]:
    """Requests for one key, and the statuses of their answers."""
    lease, other = f"{key}/{number}", f"{key}/{number}/other"
    mine = {"key": key, "ownerName": "me", "leaseId": lease}
    permit = {"key": f"pool/{key}", "ownerName": "me", "leaseId": lease, "capacity": 2}
    ask = service.request
    return [
        (ask("POST", "/v1/acquire", {**mine, "data": "x" * (number * 37 % 3000)}), 200),
        (ask("POST", "/v1/heartbeat", {"key": key, "leaseId": lease}), 200),
        (ask("GET", f"/v1/lock?key={key}"), 200),
        (ask("POST", "/v1/acquire", {**mine, "ownerName": "other", "leaseId": other}), 423),
        (ask("POST", "/v1/release", {"key": key, "leaseId": other}), 409),
        (ask("POST", "/v1/semaphore/acquire", permit), 200),
        (ask("POST", "/v1/semaphore/release", {"key": permit["key"], "leaseId": lease}), 200),
        (ask("GET", f"/v1/lock?key=missing/{lease}"), 404),
        (ask("GET", "/v1/locks?limit=10"), 200),
        (ask("POST", "/v1/acquire", '{"key": '), 400),
        (ask("POST", "/v1/acquire", mine, token=f"unknown-{number}"), 401),
        (ask("GET", f"/{lease}"), 404),
        (ask("GET", "/v1/health"), 200),
        (ask("POST", "/v1/release", {"key": key, "leaseId": lease}), 200),
    ]


async def answer(reader: asyncio.StreamReader) -> int:
    """Reads an answer, and returns its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    return int(head.split(b" ", 2)[1])


async def ask_repeatedly(service: Service, connection: int, first: int, rounds: int) -> None:
    """Makes rounds of requests, over a new connection from time to time."""
    for begin in range(first, first + rounds, ROUNDS_OF_CONNECTION):
        reader, writer = await asyncio.open_connection(service.host, int(service.port))
        for number in range(begin, min(begin + ROUNDS_OF_CONNECTION, first + rounds)):
            for request, expected in round_of(service, f"k{connection}/{number % KEYS_OF_CONNECTION}", number):
                while True:
                    writer.write(request)
                    status = await asyncio.wait_for(answer(reader), 60)
                    if status != 429:  # the slots for listings are taken
                        break
                    await asyncio.sleep(0.05)
                assert status == expected, f"{status} in place of {expected}: {request[:200]!r}"
        writer.close()
        await writer.wait_closed()


async def quarter(service: Service, first: int, rounds: int) -> None:
    """Makes a quarter of the requests."""
    await asyncio.gather(*(ask_repeatedly(service, number, first, rounds) for number in range(CONNECTIONS)))


def measure(service: Service, requests: int) -> None:
    """Makes the requests, and measures the service after each quarter."""
    size_of_round = len(round_of(service, "", 0))
    rounds = max(1, requests // 4 // CONNECTIONS // size_of_round)
    print("requests  seconds  memory KB  descriptors  threads  lines of metrics  files KB")
    sizes = []
    begun = time.monotonic()
    for number in range(4):
        asyncio.run(quarter(service, number * rounds, rounds))
        time.sleep(1.5)  # the metrics are folded each second
        sizes.append(service.size())
        made = (number + 1) * rounds * CONNECTIONS * size_of_round
        size = sizes[-1]
        print(
            f"{made:8}  {time.monotonic() - begun:7.1f}  {size.kilobytes:9}  {size.descriptors:11}  {size.threads:7}"
            f"  {size.metrics:16}  {size.file_kilobytes:8}",
            flush=True,
        )
    # A leak grows in each quarter. A warm memory grows in few steps, such as another thread's stack and arena.
    for name, first, second, third, noise in zip(Size._fields, *sizes[1:], NOISE, strict=True):
        is_steady = 2 * min(second - first, third - second) > noise
        assert not is_steady and third <= first + 2 * noise, f"{name} grew from {first} to {second} and {third}"


def main() -> None:
    """Runs the service and the requests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("requests", nargs="?", type=int, default=300_000, help="number of requests (300000)")
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory(prefix="leasehold-leaks-") as name:
        service = Service(Path(name))
        try:
            measure(service, requests)
        finally:
            service.process.terminate()
            service.process.wait(30)


if __name__ == "__main__":
    main()
