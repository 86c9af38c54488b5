"""What many tasks of one Python client cost: herd.py herd | held | held-aio. herd.sh runs it."""

import asyncio
import os
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from leasehold import Client, aio

URL = os.environ["LEASEHOLD_URL"]
TASKS, WORK, LOCKS = 50, 0.01, 1000


def herd():
    """50 threads of one client, which hold one lock for 10 ms each."""

    def task(_):
        with client.lock("herd", wait=60):
            time.sleep(WORK)

    with Client(URL) as client, ThreadPoolExecutor(TASKS) as threads:
        began = time.monotonic()
        list(threads.map(task, range(TASKS)))
        return time.monotonic() - began


def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held():
    """1,000 locks that one client holds, and keeps by heartbeats."""
    with Client(URL, lease=120) as client:
        client.acquire("first").granted()
        before = megabytes()
        guards = [client.acquire(f"held-{number}").granted() for number in range(LOCKS)]
        most = 0
        end = time.monotonic() + 35  # each has had a heartbeat by then
        while time.monotonic() < end:
            most = max(most, threading.active_count())
            time.sleep(0.05)
        assert all(guard.valid for guard in guards)
        return megabytes() - before, most


async def held_aio():
    async with aio.Client(URL, lease=120) as client:
        (await client.acquire("first-aio")).granted()
        before = megabytes()
        guards = [(await client.acquire(f"aio-{number}")).granted() for number in range(LOCKS)]
        await asyncio.sleep(35)
        assert all(guard.valid for guard in guards)
        return megabytes() - before, threading.active_count()


match sys.argv[1]:
    case "herd":
        print(f"Python: 50 tasks, 10 ms each, under one lock: {herd():.2f} s")
    case "held":
        memory, threads = held()
        print(f"Python, threads: 1,000 held locks: {memory:.1f} MB, at most {threads} threads")
    case "held-aio":
        memory, threads = asyncio.run(held_aio())
        print(f"Python, asyncio: 1,000 held locks: {memory:.1f} MB, {threads} threads")
