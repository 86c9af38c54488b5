"""Steady callers of `leasehold serve`, and a probe of the machine, in a process of their own.

Usage: steady.py HOST:PORT HOLDERS PAUSE. The variable TOKEN may have the callers' token. Each holder renews a lock of
its own, `steady/0` and so on, with PAUSE seconds between two heartbeats; one more caller reads /v1/health in the same
way. The probe only sleeps: what it oversleeps is the machine's delay, which each answer of the service contains at
least twice. For each line of input, a line of JSON has what was seen since the one before, in milliseconds. With the
end of the input, the callers end.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any

LEASE_MS = 10_000
PROBE_SECONDS = 0.005


class Refused(Exception):
    """An answer other than 200."""


class Steady:
    """The steady callers, from the process that started them."""

    def __init__(self, address: str, holders: int, pause: float, token: str = "") -> None:
        """Starts the callers. The locks are held when this returns."""
        self.process = subprocess.Popen(
            [sys.executable, __file__, address, str(holders), str(pause)],
            env={**os.environ, "TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen()

    def seen(self) -> "Seen":
        """What was seen since the last call."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Seen(**json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        """Ends the callers."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


class Seen:
    """Latencies in milliseconds, in their order of size."""

    def __init__(self, heartbeats: list[float], health: list[float], probe: list[float], failures: list[str]) -> None:
        """Sorts the latencies."""
        self.heartbeats, self.health, self.probe = sorted(heartbeats), sorted(health), sorted(probe)
        self.failures = failures

    def __add__(self, other: "Seen") -> "Seen":
        """Both together."""
        return Seen(
            self.heartbeats + other.heartbeats,
            self.health + other.health,
            self.probe + other.probe,
            self.failures + other.failures,
        )


def share(latencies: Sequence[float], thousandths: int) -> float:
    """The latency that so many thousandths of all do not exceed. None at all is infinitely late."""
    return latencies[min(len(latencies) * thousandths // 1000, len(latencies) - 1)] if latencies else float("inf")


def figures(latencies: Sequence[float]) -> str:
    """Median, p99, p99.9 and the longest."""
    return " / ".join(f"{share(latencies, thousandths):.0f}" for thousandths in (500, 990, 999, 1000))


class Connection:
    """A connection that is made anew when the service has closed it."""

    def __init__(self, address: str, token: str = "") -> None:
        """Connects with the first request."""
        self.connection = HTTPConnection(address, timeout=30)
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """Sends a request. Raises `Refused` unless the answer is 200."""
        for attempt in range(3):
            try:
                self.connection.request(method, path, None if body is None else json.dumps(body), self.headers)
                answer = self.connection.getresponse()
                document: dict[str, object] = json.loads(answer.read())
            except (HTTPException, OSError):
                self.connection.close()
                if attempt == 2:
                    raise
                continue
            if answer.status != 200:
                raise Refused(f"{answer.status} {document}")
            return document
        raise AssertionError


class Caller(threading.Thread):
    """Repeats one request over one connection."""

    def __init__(self, address: str, pause: float) -> None:
        """Connects with the first call."""
        super().__init__(daemon=True)
        self.call, self.pause = Connection(address, os.environ.get("TOKEN", "")).request, pause
        self.latencies: list[float] = []
        self.failures: list[str] = []

    def ask(self) -> None:
        """Makes the request once."""
        self.call("GET", "/v1/health")

    def run(self) -> None:
        """Repeats the request until the process ends."""
        while True:
            time.sleep(self.pause)
            started = time.monotonic()
            try:
                self.ask()
            except (Refused, HTTPException, OSError) as error:
                self.failures.append(repr(error))
                continue
            self.latencies.append((time.monotonic() - started) * 1000)


class Holder(Caller):
    """Keeps one lock."""

    def __init__(self, address: str, pause: float, number: int) -> None:
        """Acquires the lock."""
        super().__init__(address, pause)
        self.key = f"steady/{number}"
        body = {"key": self.key, "ownerName": "steady", "leaseId": self.key, "leaseDurationMs": LEASE_MS}
        self.token = self.call("POST", "/v1/acquire", body)["fencingToken"]

    def ask(self) -> None:
        """Renews the lock."""
        beat = self.call("POST", "/v1/heartbeat", {"key": self.key, "leaseId": self.key})
        if beat["fencingToken"] != self.token:
            raise Refused(f"{self.key}: another token, {beat}")


class Probe(Caller):
    """Only sleeps. Its latency is the time that it sleeps too long."""

    def run(self) -> None:
        """Sleeps until the process ends."""
        while True:
            started = time.monotonic()
            time.sleep(PROBE_SECONDS)
            self.latencies.append((time.monotonic() - started - PROBE_SECONDS) * 1000)


def taken(callers: Sequence[Caller], name: str) -> list[Any]:
    """Empties a list of each caller, and returns what was in them."""
    found: list[Any] = []
    for caller in callers:
        found += getattr(caller, name)
        setattr(caller, name, [])
    return found


def main() -> None:
    """Calls until the input ends."""
    address, holders, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    holding = [Holder(address, pause, number) for number in range(holders)]
    health, probe = [Caller(address, pause)], [Probe(address, pause)]
    callers: list[Caller] = [*holding, *health, *probe]
    for caller in callers:
        caller.start()
    for _ in sys.stdin:
        seen = {
            "heartbeats": taken(holding, "latencies"),
            "health": taken(health, "latencies"),
            "probe": taken(probe, "latencies"),
            "failures": taken(callers, "failures"),
        }
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
