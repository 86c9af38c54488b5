#!/usr/bin/env python3
"""The CPU time of one cycle (acquire and release) of the Python client, beside two requests by urllib3 alone.

    LEASEHOLD_URL=http://127.0.0.1:8080 target/python-client/venv/bin/python scripts/python-cycle.py

The least of five rounds of 400 counts: what the machine does beside has the least part in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import urllib3

from leasehold import Client

URL = os.environ["LEASEHOLD_URL"]
COUNT = 400
BODY = b'{"key":"bare","leaseId":"bare","ownerName":"a-name-of-a-usual-length","leaseDurationMs":20000}'


def cpu(body: Callable[[], object]) -> float:
    """The milliseconds of CPU time that the process needs for the body."""
    body()
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(COUNT):
            body()
        rounds.append((time.process_time() - began) / COUNT * 1000)
    return min(rounds)


pool = urllib3.PoolManager()
headers = {"content-type": "application/json"}


def bare() -> None:
    for _ in range(2):
        pool.request("POST", f"{URL}/v1/release", body=BODY, headers=headers, retries=False)


with Client(URL) as client:
    cycle = cpu(lambda: client.acquire("cycle").granted().release())
two = cpu(bare)
print(f"a cycle: {cycle:.2f} ms, two bare requests: {two:.2f} ms, the client's own: {cycle - two:.2f} ms")
