"""An HTTP proxy between the contenders and the service: it loses, delays, duplicates and reorders what passes."""

import asyncio
import random
import threading
from collections import Counter

LONGEST_DELAY = 4.0
"""Seconds: longer than any lease of the contenders."""
LATEST_COPY = 10.0


class Proxy:
    """Runs in a thread of its own. `counts` says what happened to how many requests.

    Each request and each answer takes up to `latency` seconds, and one of ten thirty times as long. A third of the
    requests whose first line contains `copied` come twice.
    """

    def __init__(self, seed, fault_percent, latency=0.0, copied=None):
        self.counts = Counter()
        self.targets: list[tuple[str, int] | None] = [None]  # one for each service; None while it is down
        self.port = None
        self._lost = []  # requests that have all of these bytes are lost
        self._random = random.Random(seed)
        self.fault_percent = fault_percent
        self._latency, self._copied = latency, copied
        self._arrived = 0
        self._delivered = 0
        self._loop = asyncio.new_event_loop()
        self._tasks = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    @property
    def target(self):
        """The only service."""
        return self.targets[0]

    @target.setter
    def target(self, target):
        self.targets = [target]

    def lose(self, *parts):
        """From now on no request arrives that has all of these bytes."""
        self._lost.append(parts)

    def lose_no_more(self, *parts):
        if parts in self._lost:
            self._lost.remove(parts)

    def close(self):
        """Ends what is under way, and returns when nothing of it is left."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.01))  # the transports close their sockets
        self._loop.close()

    def _fate(self):
        if self._random.uniform(0, 100) >= self.fault_percent:
            return "delivered"
        fates = [
            "request lost",
            "answer lost",
            "request delayed",
            "answer delayed",
            "request late",
            "request duplicated",
        ]
        return self._random.choice(fates)

    async def _serve(self, reader, writer):
        # The loop keeps weak references only.
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            while (request := await read_message(reader)) is not None:
                answer = await self._pass_on(request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError):
            pass  # one of them left, or the proxy is closed
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, request):
        """The answer, or None where the connection is to break."""
        self._arrived += 1
        number, fate = self._arrived, self._fate()
        if any(all(part in request for part in parts) for parts in self._lost):
            fate = "request lost"
        if self._copied and self._copied in request.partition(b"\r\n")[0] and self._random.random() < 1 / 3:
            fate = "request duplicated"
        self.counts[fate] += 1
        delay = self._random.uniform(0, LONGEST_DELAY)
        if fate == "request lost":
            return None
        if fate == "request late":
            # The caller is told at once that the connection broke; the request arrives all the same.
            self._later(delay, number, request)
            return None
        if fate == "request delayed":
            await asyncio.sleep(delay)
        if fate == "request duplicated":
            self._later(self._random.uniform(0, LATEST_COPY), number, request)
        await self._on_the_way()
        answer = await self._deliver(number, request)
        await self._on_the_way()
        if fate == "answer lost":
            return None
        if fate == "answer delayed":
            await asyncio.sleep(delay)
        return answer

    async def _on_the_way(self):
        longest = self._latency * (30 if self._random.random() < 0.1 else 1)
        await asyncio.sleep(self._random.uniform(0, longest))

    def _later(self, delay, number, request):
        async def deliver():
            await asyncio.sleep(delay)
            await self._deliver(number, request)

        task = self._loop.create_task(deliver())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, number, request):
        if number < self._delivered:
            self.counts["reordered"] += 1
        self._delivered = max(self._delivered, number)
        target = self._random.choice(self.targets)
        if target is None:
            return None
        try:
            reader, writer = await asyncio.open_connection(*target)
            try:
                writer.write(request)
                await writer.drain()
                return await read_message(reader)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError):
            return None


async def read_message(reader):
    """One HTTP/1.1 message with a length, or None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)
