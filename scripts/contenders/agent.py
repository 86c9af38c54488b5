"""An agent of the nemesis: carries out orders by the Python client.

Each line of the input is an order, each of the output its answer: a JSON object, with `error` where it failed. While
the agent waits for a grant it says so five times a second.
"""

import json
import os
import queue
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from decimal import Decimal
from typing import Any

from leasehold import Client, Held, LeaseholdError, Permits
from leasehold.election import Election

TABLE = os.environ["CONTEND_TABLE"]
client = Client(os.environ["LEASEHOLD_URL"], owner_name="python")
lock = threading.Lock()
bodies = ThreadPoolExecutor(1000)
held: Any = None
tx: Any = None

ENDS = 20.0
"""Seconds for `once` or `lead`, whose body has ended. A leader who lost its lead stands again."""


class Unfinished(Exception):
    """A body was left without success, or goes on."""


class Inside:
    """A guard that `once` or `lead` hands to its body. The body goes on until it is told to end."""

    def __init__(self, run):
        begun: queue.SimpleQueue = queue.SimpleQueue()
        self._end: Future = Future()

        def body(guard):
            begun.put(guard)
            if not self._end.result():
                raise Unfinished

        self._outcome = bodies.submit(run, body)
        self._outcome.add_done_callback(lambda _: begun.put(None))
        self._guard = begun.get()
        if self._guard is None:
            self._outcome.result()

    @property
    def valid(self):
        return self._guard.valid

    @property
    def fencing_token(self):
        return self._guard.fencing_token

    @property
    def was_called(self):
        return self._guard is not None

    def end(self, succeeds):
        if not self._end.done():
            self._end.set_result(succeeds)

    def outcome(self):
        if not wait([self._outcome], ENDS).done:
            raise Unfinished
        return self._outcome.result()


def say(answer):
    with lock:
        print(json.dumps(answer, default=int), flush=True)


def value_of(item):
    """The list, or the counter, of an item."""
    if item is None:
        return None
    return int(item["n"]) if isinstance(item.get("n"), Decimal) else item.get("l")


def change(order):
    if order.get("amount"):
        return "ADD n :v", {":v": order["amount"]}
    return "SET l = list_append(if_not_exists(l, :none), :v)", {":none": [], ":v": [order["value"]]}


def acquire(order):
    key, options = order["keys"][0], {"owner_name": order["claim"], "lease": order["lease"]}
    wait = {"wait": order["wait"]}
    kind = order["kind"]
    if kind == "semaphore":
        semaphore = client.semaphore(key, order["capacity"])
        if order["wait"] == 0:
            return semaphore.try_acquire(order["permits"], **options)
        return semaphore.acquire(order["permits"], ticket_lease=order["ticketLease"], **wait, **options)
    if kind == "all":
        shares = order.get("shares", {})
        keys = [
            Permits(key, shares[key], of=order["capacities"][key]) if key in shares else key for key in order["keys"]
        ]
        return client.acquire_all(keys, **wait, **options)
    if kind == "election":
        return Election(client, key, order["claim"], **options).campaign(**wait)
    if kind == "lead":
        return Inside(Election(client, key, order["claim"], **options).lead)
    if kind == "once":
        inside = Inside(lambda body: client.once(key, order["occurrence"], body, **wait, **options))
        return inside if inside.was_called else None
    if order.get("occurrence"):
        options["occurrence"] = order["occurrence"]
    if order.get("once"):
        return client.try_acquire(key, **options)
    return client.acquire(key, **wait, **options)


def acquire_aloud(order):
    global held
    if isinstance(held, Inside):
        held.end(succeeds=False)
    done = threading.Event()

    def signs():
        while not done.wait(0.2):
            say({"waiting": True})

    thread = threading.Thread(target=signs)
    thread.start()
    try:
        held = acquire(order)
    finally:
        done.set()
        thread.join()
    return {"held": True} if held is None or isinstance(held, Held) else {"token": held.fencing_token}


def release(order):
    if isinstance(held, Inside):
        held.end(succeeds=order["kind"] == "lead" or bool(order.get("completed")))
        held.outcome()
    else:
        held.release(**{name: order[name] for name in ("completed", "data") if order.get(name)})


def break_one(order):
    """Breaks a lock, or one of the holders and waiters of a semaphore."""
    key = order["key"]
    if order["kind"] == "lock":
        lock = client.get(key)
        if lock.state != "held":
            return {}
        client.break_lock(key, lock.record_version_number)
        return {"number": lock.fencing_token}
    view = client.get_semaphore(key)
    entries = [(one.holder_id, one.version, one.fencing_token) for one in view.holders]
    entries += [(one.ticket_id, one.version, one.number) for one in view.queue]
    if not entries:
        return {}
    ident, version, number = entries[order["pick"] % len(entries)]
    client.break_entry(key, ident, version)
    return {"number": number}


def carry_out(order):
    global tx
    what = order["do"]
    if what == "begin":
        tx = client.begin_transaction()
        return {"id": tx.id}
    if what == "get":
        return {"value": value_of(tx.get(TABLE, {"id": order["key"]}))}
    if what == "change":
        tx.update(TABLE, {"id": order["key"]}, *change(order))
    elif what == "delete":
        tx.delete(TABLE, {"id": order["key"]})
    elif what == "commit":
        tx.commit()
    elif what == "rollback":
        tx.rollback()
    elif what == "look":
        return {"value": value_of(client.read_item(TABLE, {"id": order["key"]}, isolation=order["level"]))}
    elif what == "list":
        items = client.list_items(TABLE, isolation=order["level"])
        return {"items": {item["id"]: value_of(item) for item in items}}
    elif what == "acquire":
        return acquire_aloud(order)
    elif what == "believe":
        return {"believed": held.valid}
    elif what == "renew":
        held.renew()
    elif what == "keep":
        held.keep(order["permits"])
    elif what == "release":
        release(order)
    elif what == "break":
        return break_one(order)
    return {}


for line in sys.stdin:
    try:
        say(carry_out(json.loads(line)))
    except (LeaseholdError, Unfinished) as error:
        say({"error": type(error).__name__, "detail": str(error)})
