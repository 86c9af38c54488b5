"""A contender for scripts/contend.sh: acquires locks by the Python client, and records what it believed."""

import json
import os
import random
import time

from leasehold import Client, Guard, LeaseholdError

history = open(os.environ["CONTEND_HISTORY"], "a", buffering=1)  # noqa: SIM115 open as long as the process lives
who = f"python:{os.getpid()}"
keys = os.environ["CONTEND_KEYS"].split(",")


def note(event, key, at=None, **members):
    line = {"at": at or time.monotonic_ns(), "who": who, "event": event, "key": key, **members}
    history.write(json.dumps(line) + "\n")


def watch(guard, seconds):
    """Asks the guard repeatedly. Returns False once the guard reports the loss of the lock."""
    end = time.monotonic() + seconds
    while True:
        at = time.monotonic_ns()
        if not guard.valid:
            return False
        note("believed", guard.key, at, token=guard.fencing_token)
        if time.monotonic() >= end:
            return True
        time.sleep(0.02)


def hold(guard):
    data = int(guard.data or b"0")
    for _ in range(random.randrange(1, 12)):
        if not watch(guard, random.uniform(0.02, 0.3)):
            return
        if random.random() < 0.4:
            data += 1
            note("sending", guard.key, token=guard.fencing_token, data=str(data))
            lease = random.uniform(0.6, 2.5) if random.random() < 0.5 else None
            try:
                guard.renew(data=str(data), lease=lease)
            except LeaseholdError:
                continue
            note("acked", guard.key, token=guard.fencing_token, data=str(data))
    if random.random() < 0.15:
        time.sleep(random.uniform(0, 3))  # a late release
    delete = random.random() < 0.2
    note("releasing", guard.key, token=guard.fencing_token, delete=delete)
    guard.release(delete=delete)


def contend(client, key):
    asked = time.monotonic_ns()
    lease = random.uniform(0.6, 2.5)
    result = client.acquire(key, lease=lease, wait=8)
    if isinstance(result, Guard):
        data = result.data.decode() if result.data else None
        note("granted", key, token=result.fencing_token, asked=asked, data=data)
        hold(result)
    elif random.random() < 0.05:
        note("breaking", key)
        client.break_lock(key, result.lock.record_version_number)


with Client(os.environ["LEASEHOLD_URL"], owner_name=who, poll_interval=0.1) as client:
    while True:
        try:
            contend(client, random.choice(keys))
        except LeaseholdError:
            time.sleep(0.1)
