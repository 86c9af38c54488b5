"""An agent of the nemesis: carries out orders by the Python client.

Each line of the input is an order, each of the output its answer: a JSON object, with `error` where it failed. While
the agent waits for a grant it says so five times a second.
"""

import json
import os
import sys
import threading
from decimal import Decimal

from leasehold import Client, Held, LeaseholdError
from leasehold.election import Election

TABLE = os.environ["CONTEND_TABLE"]
client = Client(os.environ["LEASEHOLD_URL"], owner_name="python")
lock = threading.Lock()
held = tx = None


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
        return client.acquire_all(order["keys"], **wait, **options)
    if kind == "election":
        return Election(client, key, order["claim"], **options).campaign(**wait)
    if order.get("occurrence"):
        options["occurrence"] = order["occurrence"]
    return client.acquire(key, **wait, **options)


def acquire_aloud(order):
    global held
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
    return {"held": True} if isinstance(held, Held) else {"token": held.fencing_token}


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
        return {"believed": held.is_held}
    elif what == "keep":
        held.keep(order["permits"])
    elif what == "release":
        held.release(**({"completed": order["completed"]} if order.get("completed") else {}))
    return {}


for line in sys.stdin:
    try:
        say(carry_out(json.loads(line)))
    except LeaseholdError as error:
        say({"error": type(error).__name__, "detail": str(error)})
