#!/usr/bin/env python3
"""A bad neighbour beside steady holders of `leasehold serve`.

The binary is target/debug/leasehold, or $LEASEHOLD_BINARY. The service has a database in a file, tokens, and the port
for DynamoDB clients. Each load of `LOADS` takes its turn, and the holders renew their locks meanwhile. Fails unless
every lock is kept, no heartbeat is late, the memory is bounded, and the service is afterwards as fast as before.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from steady import Connection, Refused, Seen, Steady, figures, share

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("LEASEHOLD_BINARY", str(ROOT / "target" / "debug" / "leasehold"))
MAX_MEGABYTES = 160 if "/debug/" in BINARY else 128
"""The most memory. A debug build has more pages of its program, and larger frames."""
PAUSE = 0.5
"""Seconds between two heartbeats of one holder."""
LATE_MS = 3000
"""Milliseconds after which a heartbeat is late: a third of the lease, when a client would send the next one."""
TURN = 5.0
"""Seconds of each load."""


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="of all loads together (60)")
    parser.add_argument("--holders", type=int, default=10, help="holders of a lock each (10)")
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between two heartbeats of a holder (0.5)")
    parser.add_argument("--descriptors", type=int, default=1024, help="file descriptors of the service (1024)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the connections of each load (1)")
    return parser.parse_args()


OPTIONS = options()


class Service:
    """A running service, and the tokens of its callers."""

    def __init__(self, folder: Path) -> None:
        """Starts the service in an empty folder."""
        self.folder = folder
        self.token_file = folder / "tokens.json"
        self.tokens = {
            "steady": self.token("steady"),
            "neighbour": self.token("neighbour"),
            "narrow": self.token("narrow", "--prefix", "narrow/"),
        }
        command = [BINARY, "serve", "--db", "leasehold.db", "--listen", "127.0.0.1:0", "--expose-dynamodb", "0"]
        command += ["--token-file", str(self.token_file)]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
            preexec_fn=few_descriptors,
        )
        self.address = self.exposed = ("", 0)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if line.startswith("Leasehold listens on"):
                self.address = place(words[-1])
            elif words[0] == "dynamodb":
                self.exposed = place(words[1])
            elif words[0] == "stop":
                break

    def token(self, name: str, *more: str) -> str:
        """Makes a token, as an operator does."""
        command = [BINARY, "token", name, "--file", str(self.token_file), *more]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def head(self, method: str, path: str, token: str, length: int | None) -> bytes:
        """The head of a request whose body is JSON. Without a length, the body comes in chunks."""
        body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        name = f"{self.address[0]}:{self.address[1]}"
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {self.tokens[token]}\r\n"
            f"Content-Type: application/json\r\n{body}\r\n\r\n"
        ).encode()

    def megabytes(self, field: str = "VmRSS") -> int:
        """The memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) // 1024

    def processor_time(self) -> float:
        """Seconds of the processor that the process has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ends the service."""
        self.process.terminate()
        self.process.wait(30)


def few_descriptors() -> None:
    """Leaves the service few file descriptors: 1,024, as a login shell does, unless asked for others."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPTIONS.descriptors, OPTIONS.descriptors))


def place(url: str) -> tuple[str, int]:
    """Host and port of a URL."""
    host, port = url.split("//")[1].rstrip("/").rsplit(":", 1)
    return host, int(port)


class Caller(Connection):
    """A client with one connection."""

    def __init__(self, service: Service, token: str) -> None:
        """Connects with the first request."""
        super().__init__("{}:{}".format(*service.address), service.tokens[token])
        self.owner = token

    def cycle(self, key: str) -> None:
        """Acquires and releases a lock."""
        lease_id = str(uuid.uuid4())
        self.request("POST", "/v1/acquire", {"key": key, "ownerName": self.owner, "leaseId": lease_id})
        self.request("POST", "/v1/release", {"key": key, "leaseId": lease_id})


def connect(address: tuple[str, int]) -> socket.socket:
    """A connection that waits for nothing."""
    stream = socket.create_connection(address, timeout=5)
    stream.setblocking(False)
    return stream


def send(stream: socket.socket, data: bytes) -> bool:
    """Sends what fits. Returns whether the connection still lives."""
    try:
        stream.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


@contextlib.contextmanager
def many(service: Service, count: int, data: Callable[[int], bytes]) -> Iterator[list[socket.socket]]:
    """Connections on which the beginning of a request was sent."""
    streams: list[socket.socket] = []
    try:
        for index in range(round(count * OPTIONS.scale)):
            try:
                stream = connect(service.address)
            except OSError:
                continue
            streams.append(stream)
            send(stream, data(index))
        yield streams
    finally:
        for stream in streams:
            stream.close()


def until(end: float) -> None:
    """Waits."""
    time.sleep(max(0.0, end - time.monotonic()))


def beside(callers: int, end: float, work: Callable[[int], None]) -> None:
    """Lets callers do their work again and again."""

    def repeat(number: int) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(Refused, HTTPException, OSError):
                work(number)

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def heavy_transactions(service: Service, end: float) -> None:
    """One transaction of 100 heavy conditions, again and again."""
    condition = " AND ".join(["size(a) >= size(a)"] * 140)
    checks = [
        {"ConditionCheck": {"TableName": "items", "Key": {"id": {"S": str(index)}}, "ConditionExpression": condition}}
        for index in range(100)
    ]
    callers = [Caller(service, "neighbour") for _ in range(4)]
    beside(
        4,
        end,
        lambda number: void(
            callers[number].request("POST", "/v1/transactions/begin", {"requests": checks, "commit": True})
        ),
    )


def void(_: object) -> None:
    """Drops a result."""


def second_service(service: Service, end: float) -> None:
    """A second service on the same file, under its own name and under a symbolic link."""
    link = service.folder / "link.db"
    link.unlink(missing_ok=True)
    link.symlink_to(service.folder / "leasehold.db")
    for name in ["leasehold.db", "link.db"]:
        command = [BINARY, "serve", "--db", name, "--listen", "127.0.0.1:0"]
        found = subprocess.run(command, cwd=service.folder, capture_output=True, text=True, timeout=60)
        assert found.returncode == 1 and "in use" in found.stderr, found
    until(min(end, time.monotonic() + 1))


def narrow_listings(service: Service, end: float) -> None:
    """Listings by a token that may see nothing."""

    def page(number: int) -> None:
        cursor = ""
        while time.monotonic() < end:
            request = service.head("GET", f"/v1/locks?limit=1000{cursor}", "narrow", 0)
            with socket.create_connection(service.address, timeout=30) as stream:
                stream.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                text = b""
                while part := stream.recv(65536):
                    text += part
            found = json.loads(text.split(b"\r\n\r\n", 1)[1]).get("nextCursor")
            if found is None:
                return
            cursor = f"&cursor={found}"

    beside(8, end, page)


def many_requests(service: Service, end: float) -> None:
    """Requests without end, and nobody who reads the metrics."""
    callers = [Caller(service, "neighbour") for _ in range(8)]

    beside(8, end, lambda number: callers[number].cycle(f"busy/{number}"))


def unfinished_bodies(service: Service, end: float) -> None:
    """1,500 requests whose bodies do not end."""
    length = random.randrange(20_000, 2_000_000)
    data = service.head("POST", "/v1/acquire", "neighbour", length) + b" " * min(length - 1, 60_000)
    with many(service, 1500, lambda _: data):
        until(end)


def slow_chunks(service: Service, end: float) -> None:
    """40 bodies that grow by a byte at a time, without a length."""
    head = service.head("POST", "/v1/transactions/begin", "neighbour", None)
    with many(service, 40, lambda _: head) as streams:
        while time.monotonic() < end:
            for stream in streams:
                send(stream, b"1\r\n \r\n")
            time.sleep(0.2)


def no_readers(service: Service, end: float) -> None:
    """100 clients that ask for pages and do not read."""
    request = service.head("GET", "/v1/locks?limit=1000", "neighbour", 0) * 4
    with many(service, 100, lambda _: request):
        until(end)


def idle_connections(service: Service, end: float) -> None:
    """More connections than the service has file descriptors, silent or with half a head."""
    with many(service, 1200, lambda index: b"GET /v1/lock?key=a HTTP/1.1\r\nX: " * (index % 2)):
        until(end)


def unsigned_requests(service: Service, end: float) -> None:
    """What a web page could send to the port for DynamoDB clients."""
    headers = {"Content-Type": "application/json", "X-Amz-Target": "DynamoDB_20120810.DeleteTable"}

    def delete(_: int) -> None:
        connection = HTTPConnection(*service.exposed, timeout=30)
        connection.request("POST", "/", json.dumps({"TableName": "leasehold"}), headers)
        answer = connection.getresponse()
        assert answer.status == 400 and b"MissingAuthenticationToken" in answer.read()
        connection.close()

    beside(4, end, delete)


def more_tokens(service: Service, end: float) -> None:
    """Twelve tokens that are made at once, again and again."""

    def add(_: int) -> None:
        service.token(f"t{random.getrandbits(64)}")
        time.sleep(0.5)

    beside(12, min(end, time.monotonic() + 2), add)


LOADS = [
    heavy_transactions,
    second_service,
    narrow_listings,
    many_requests,
    unfinished_bodies,
    slow_chunks,
    no_readers,
    idle_connections,
    unsigned_requests,
    more_tokens,
]


def fill(service: Service) -> None:
    """Locks with payloads: pages of megabytes."""
    caller = Caller(service, "neighbour")
    for index in range(60):
        key = f"large/{index}"
        caller.request(
            "POST", "/v1/acquire", {"key": key, "ownerName": "neighbour", "leaseId": key, "data": "x" * 200_000}
        )


def cost(service: Service, cycles: int = 200) -> float:
    """Milliseconds of the processor that the service takes to grant a lock and to end it. Other work does not count."""
    caller, before = Caller(service, "steady"), service.processor_time()
    for _ in range(cycles):
        caller.cycle("measure")
    return (service.processor_time() - before) * 1000 / cycles


def broken_token_file(service: Service) -> None:
    """The token file is half written: everybody is refused for three seconds, and nobody loses a lock."""
    text = service.token_file.read_text()
    service.token_file.write_text(text[: len(text) // 2])
    caller = Caller(service, "steady")
    await_admission(caller, False)
    time.sleep(3)
    assert not is_admitted(caller), "a broken token file refuses requests"
    service.token_file.write_text(text)
    await_admission(caller, True)
    # Refusals that are under way arrive.
    time.sleep(1)


def is_admitted(caller: Caller) -> bool:
    """Whether the service takes the caller's requests."""
    try:
        caller.request("POST", "/v1/want", {"key": "steady/0", "ownerName": "observer"})
    except Refused as refused:
        assert str(refused).startswith("503"), refused
        return False
    return True


def await_admission(caller: Caller, expected: bool) -> None:
    """Waits until the service has read the token file again, which it does every two seconds."""
    deadline = time.monotonic() + 30
    while is_admitted(caller) != expected:
        assert time.monotonic() < deadline, f"admitted: {not expected}, 30 s after the token file was written"
        time.sleep(0.1)


def main() -> None:
    """Runs the loads, and reports."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with tempfile.TemporaryDirectory(prefix="leasehold-neighbour-") as name:
        service = Service(Path(name))
        try:
            report(service, OPTIONS.seconds)
        finally:
            service.stop()


def show(name: str, seen: Seen, service: Service) -> Seen:
    """Prints a row of the table."""
    row = [name, len(seen.heartbeats), figures(seen.heartbeats), figures(seen.probe), service.megabytes("VmHWM")]
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    return seen


def report(service: Service, seconds: float) -> None:
    """Runs the loads beside the holders. Raises an `AssertionError` where the service did not hold."""
    fill(service)
    before = cost(service)
    steady = Steady("{}:{}".format(*service.address), OPTIONS.holders, OPTIONS.pause, service.tokens["steady"])
    print("| neighbour | heartbeats | p50 / p99 / p99.9 / longest, ms | the probe, the same | memory at most, MB |")
    print("|---|---|---|---|---|")
    begun, turn, total = time.monotonic(), 0, Seen([], [], [], [])
    while time.monotonic() < begun + seconds or turn < len(LOADS):
        load = LOADS[turn % len(LOADS)]
        load(service, time.monotonic() + min(TURN, seconds / len(LOADS)))
        total += show(load.__name__.replace("_", " "), steady.seen(), service)
        turn += 1
    show("all", total, service)
    broken_token_file(service)
    steady.seen()
    time.sleep(2 * OPTIONS.pause)
    total.failures += steady.seen().failures
    steady.end()
    after, highest = cost(service), service.megabytes("VmHWM")
    print(f"a lock and its release cost {before:.2f} ms of the processor before, and {after:.2f} ms after")
    assert not total.failures, f"{len(total.failures)} failures, such as {total.failures[:3]}"
    assert share(total.heartbeats, 1000) < LATE_MS, "a heartbeat was late"
    assert highest <= MAX_MEGABYTES, "the memory is not bounded"
    assert after < before * 2.5, "the service is slower than before"  # 1.0 and 1.4 times were seen


if __name__ == "__main__":
    main()
