"""A function for scripts/contend.sh: works under a lock, by the Python client, and writes to the store."""

import asyncio
import json
import os
import time
import urllib.request

from leasehold import Client
from leasehold.handlers import idempotent, locked

client = Client(os.environ["LAMBDA_SERVICE"], owner_name=f"python:{os.getpid()}", lease=20, poll_interval=0.1)


def write(event, context):
    body = {"key": event["key"], "who": context.aws_request_id, "token": context.leasehold.fencing_token}
    request = urllib.request.Request(os.environ["LAMBDA_STORE"], json.dumps(body).encode())
    urllib.request.urlopen(request, timeout=10).close()


def goes_on(event, context):
    """Whether the work goes on: work of the kind `overruns` does not look at its guard."""
    return event["kind"] == "overruns" or context.leasehold.valid


def work(event, context):
    ends = time.monotonic() + event["seconds"]
    while time.monotonic() < ends and goes_on(event, context):
        write(event, context)
        time.sleep(0.02)
    if event["kind"] == "raises":
        raise ValueError("as it was told")
    if event["kind"] == "dies":
        os._exit(1)


async def asynchronous_work(event, context):
    ends = time.monotonic() + event["seconds"]
    while time.monotonic() < ends:
        write(event, context)
        await asyncio.sleep(0.02)


CONTENTIONS = ("raise", "wait", "skip")
WORK = {
    contention: locked(key="{key}", client=client, margin=0.6, on_contention=contention)(work)
    for contention in CONTENTIONS
}
ONCE = {
    contention: idempotent(
        key="{key}", client=client, margin=0.6, payload=lambda event: event["key"], on_contention=contention
    )(lambda event, context: work(event, context) or context.leasehold.fencing_token)
    for contention in ("raise", "wait")
}
ASYNCHRONOUS = locked(key="{key}", client=client, margin=0.6)(asynchronous_work)


def handler(event, context):
    if event.get("once"):
        return ONCE[event["contention"]](event, context)
    if event["kind"] == "asynchronous":
        return ASYNCHRONOUS(event, context)
    return WORK[event["contention"]](event, context)
