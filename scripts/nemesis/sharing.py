"""Two callers in two languages share a lock: each gets between 40 and 60 percent of the grants.

Each acquires the lock, releases it, and asks again, as the documents tell it. The clients pause by themselves. The
caller of plain HTTP marks the lock after a random part of a second, and pauses where somebody else had marked it.
scripts/contend.sh coordination runs this before the nemesis.
"""

import http.client
import itertools
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import uuid

from agents import COMMANDS, Agent
from nemesis import Service

SECONDS = 40.0
"""The time of all pairs, beside each other. A turn takes one to three."""
HOLD = 0.05
"""Seconds of a grant."""
PAUSE = 1.0
"""Seconds for which the caller of plain HTTP leaves the lock to others, or goes on without a pause."""
POLL = 0.25
"""Seconds between two requests of the caller of plain HTTP."""


class Plain:
    """A caller of plain HTTP."""

    def __init__(self, target):
        self._connection = http.client.HTTPConnection(target[0], target[1], timeout=30)
        self._returns_since = None

    def use(self, key, number):
        lease = str(uuid.uuid4())
        mark_at = time.monotonic() + random.random()
        while self._post("acquire", key, ownerName=f"http-{number}", leaseId=lease)[0] == 423:
            if time.monotonic() >= mark_at:
                self._post("want", key, ownerName=f"http-{number}")
                mark_at = float("inf")
            time.sleep(POLL)
        return lambda: self._release(key, lease)

    def _release(self, key, lease):
        """Returns at once where nobody waits, for a second at the most."""
        is_wanted = self._post("release", key, leaseId=lease)[1].get("wanted")
        now = time.monotonic()
        since = self._returns_since or now
        returns = not is_wanted and now - since < PAUSE
        self._returns_since = since if returns else None
        if not returns:
            time.sleep(PAUSE)

    def _post(self, what, key, **members):
        body = json.dumps({"key": key} | members)
        self._connection.request("POST", f"/v1/{what}", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or "{}")

    def stop(self):
        self._connection.close()


class Client:
    """An agent of a client."""

    def __init__(self, kind, environment, folder):
        self._agent = Agent(kind, COMMANDS[kind], environment, folder)
        self._kind = kind

    def use(self, key, number):
        order = {"do": "acquire", "kind": "lock", "keys": [key], "claim": f"{self._kind}-{number}"}
        answer = self._agent.ask(order | {"lease": 20.0, "wait": 60.0})
        if "token" not in answer:
            raise RuntimeError(f"{self._kind}: {answer}")
        return lambda: self._agent.ask({"do": "release", "kind": "lock"})

    def stop(self):
        self._agent.stop()


def share(callers, key):
    """The number of grants of each caller, from the time at which both have come in once."""
    counts, began = [0] * len(callers), threading.Barrier(len(callers))

    def work(index):
        callers[index].use(f"{key}, {index}", 0)()
        began.wait()
        end = time.monotonic() + SECONDS
        for number in itertools.count(1):
            release = callers[index].use(key, number)
            is_over = time.monotonic() > end
            counts[index] += not is_over
            time.sleep(HOLD)
            release()
            if is_over:
                return

    together([lambda index=index: work(index) for index in range(len(callers))])
    return counts


def together(works):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    with tempfile.TemporaryDirectory(prefix="sharing-") as name:
        folder = pathlib.Path(name)
        service = Service(os.environ["LEASEHOLD"], os.environ, folder, None)
        environment = os.environ | {
            "LEASEHOLD_URL": f"http://127.0.0.1:{service.target[1]}",
            "CONTEND_TABLE": "none",
        }
        pairs = list(itertools.combinations([*COMMANDS, "http"], 2))
        found = {}

        def compare(pair):
            callers = [Plain(service.target) if kind == "http" else Client(kind, environment, folder) for kind in pair]
            found[pair] = share(callers, "-".join(pair))
            for caller in callers:
                caller.stop()

        def uneven_pairs():
            return [pair for pair in pairs if pair not in found or min(found[pair]) < 0.4 * sum(found[pair])]

        try:
            together([lambda pair=pair: compare(pair) for pair in pairs])
            # A few stalls of a busy machine move a share, and seldom twice.
            for pair in uneven_pairs():
                print(f"contend: {' and '.join(pair)}, beside the others: {found.pop(pair, 'nothing')}; again, alone")
                together([lambda pair=pair: compare(pair)])
        finally:
            service.close()
    uneven = uneven_pairs()
    for pair in pairs:
        counts = found.get(pair, "nothing")
        print(f"contend: {' and '.join(pair)} share a lock: {counts}{', UNEVEN' if pair in uneven else ''}")
    sys.exit(1 if uneven else 0)


if __name__ == "__main__":
    main()
