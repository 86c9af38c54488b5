"""A function for scripts/contend.sh without a client: it asks the agent beside it by HTTP, and writes to the store.

The loop at the end is a runtime: it asks for one invocation after the other.
"""

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

RUNTIME = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"
AGENT = f"http://{os.environ['LEASEHOLD_LISTEN']}"
STORE = os.environ["LAMBDA_STORE"]
kept: dict[str, Any] | None = None
"""The handle of a lock that an earlier invocation left."""


class Refused(Exception):
    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem}")
        self.status, self.problem = status, problem


def ask(url, *bodies):
    """Posts a body, or reads. Returns the document of the answer."""
    data = json.dumps(bodies[0]).encode() if bodies else None
    try:
        with urllib.request.urlopen(url, data, timeout=10) as answer:
            content = answer.read()
            return json.loads(content) if content else None
    except urllib.error.HTTPError as error:
        raise Refused(error.code, json.load(error)) from None


def is_held(lock):
    try:
        return ask(f"{AGENT}/lock?handle={lock['handle']}")["validForMs"] > 0
    except Refused:
        return False


def work(event, who, lock):
    """Work of the kind `overruns` does not look whether its lock is held."""
    ends = time.monotonic() + event["seconds"]
    while time.monotonic() < ends and (event["kind"] == "overruns" or is_held(lock)):
        ask(STORE, {"key": event["key"], "who": who, "token": lock["fencingToken"]})
        time.sleep(0.02)
    if event["kind"] == "raises":
        raise ValueError("as it was told")
    if event["kind"] == "dies":
        os._exit(1)


def use_kept(event, who):
    """Writes under the lock that an earlier invocation kept, once it may be believed in, and releases it."""
    global kept
    lock, kept = kept or {}, None
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        if is_held(lock):
            ask(STORE, {"key": lock["key"], "who": f"{who} under a kept lock", "token": lock["fencingToken"]})
            break
        time.sleep(0.02)
    try:
        ask(f"{AGENT}/release", {"handle": lock["handle"]})
    except Refused as refused:
        if refused.status not in (404, 409):
            raise


def handle(event, who):
    global kept
    if kept is not None:
        use_kept(event, who)
    body = {"key": event["key"], "wait": "1s" if event["contention"] == "wait" else "0s"}
    if event.get("once"):
        body |= {"occurrence": "1", "staleness": "clock"}
    if event["kind"] == "keeps":
        body |= {"keep": True, "leaseDurationMs": 3000}
    try:
        if event["kind"] == "asynchronous":
            hold(event, who, body)
            return None
        lock = ask(f"{AGENT}/acquire", body)
    except Refused as refused:
        if refused.status == 409 and refused.problem["type"] == "already-done":
            return json.loads(refused.problem["result"])
        if refused.status == 423 and event["contention"] == "skip":
            return None
        raise
    if event["kind"] == "keeps":
        kept = lock
        return {"kept": lock["fencingToken"]}
    work(event, who, lock)
    release = {"handle": lock["handle"]}
    if event.get("once"):
        release |= {"completed": True, "data": json.dumps(lock["fencingToken"])}
    ask(f"{AGENT}/release", release)
    return lock["fencingToken"] if event.get("once") else None


def hold(event, who, body):
    """Works while the connection is open, and no line of it tells of a loss."""
    request = urllib.request.Request(f"{AGENT}/hold", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as lines:
        lock = json.loads(lines.readline())
        work(event, who, lock)


while True:
    with urllib.request.urlopen(f"{RUNTIME}/next") as answer:
        invocation, event = answer.headers["Lambda-Runtime-Aws-Request-Id"], json.load(answer)
    try:
        what, result = "response", handle(event, invocation)
    except Exception as error:
        what, result = "error", {"errorType": type(error).__name__, "errorMessage": str(error)}
    ask(f"{RUNTIME}/{invocation}/{what}", result)
