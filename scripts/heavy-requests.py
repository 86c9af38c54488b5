#!/usr/bin/env python3
"""Attacks `leasehold serve` with the heaviest requests that it allows, four at once, and measures the other callers.

Usage: scripts/heavy-requests.py [SECONDS [FILE]]. The binary is target/debug/leasehold, or $LEASEHOLD_BINARY. The data
are in FILE, or in memory. Prints a table: the time of one such request alone, and the latencies of GET /v1/health and
of heartbeats beside four callers that never stop, with those of a probe that only sleeps: the delays of the machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from steady import Steady, figures

ROOT = Path(__file__).resolve().parent.parent
BINARY = os.environ.get("LEASEHOLD_BINARY", str(ROOT / "target" / "debug" / "leasehold"))
ITEMS = 1000
MEMBERS = 80
"""Attributes of an item: a page of 1 MB holds a thousand such items."""
ATTACKERS = 4
HOLDERS = 10
PAUSE = 0.05
"""Seconds between two heartbeats of one holder."""


def expression(parts, separator):
    """Joins as many of the parts as fit into DynamoDB's 4096 bytes."""
    text = ""
    for part in parts:
        longer = text + separator + part if text else part
        if len(longer) > 4096:
            break
        text = longer
    return text


def attacks():
    """Requests by name: path and body."""
    members = [f"a{number:02}" for number in range(MEMBERS)]
    endless = [*members, *(f"{letter}{number}" for number in range(100) for letter in "bcdefghijklmnopqrstuvwxyz")]
    operator = " OR "
    listing = {"tableName": "items", "limit": 1000}
    yield "projection: 80 paths", "/v1/items/list", {**listing, "projectionExpression": ",".join(members)}
    yield (
        "projection: 1000 paths",
        "/v1/items/list",
        {**listing, "projectionExpression": expression(endless, ",")},
    )
    yield (
        "projection: deep paths",
        "/v1/items/list",
        {**listing, "projectionExpression": expression([f"m.x.x.x.x.x.x.x.y{number}" for number in range(999)], ",")},
    )
    yield (
        "filter: 151 comparisons",
        "/v1/items/list",
        {
            **listing,
            "filterExpression": expression(
                [f"a{number % MEMBERS:02}=:v" for number in range(150)] + ["id>:v"], operator
            ),
            "expressionAttributeValues": {":v": {"S": "-"}},
        },
    )
    yield (
        "filter: 150 calls of contains",
        "/v1/items/list",
        {
            **listing,
            "filterExpression": expression(["contains(words,:w)" for _ in range(149)] + ["id>:v"], operator),
            "expressionAttributeValues": {":v": {"S": "-"}, ":w": {"S": "yz"}},
        },
    )
    yield (
        "100 reads, a projection each",
        "/v1/items/get",
        {
            "requests": [
                {
                    "tableName": "items",
                    "key": {"id": {"S": f"{number:04}"}},
                    "projectionExpression": expression(endless, ","),
                }
                for number in range(100)
            ]
        },
    )
    yield "10 conditions on dense sets", "TransactWriteItems", transaction("numbers", 10, " AND ".join(["a=a"] * 10))
    yield "100 conditions on small sets", "TransactWriteItems", transaction("some", 100, " AND ".join(["a=a"] * 140))
    yield "a condition on the largest list", "TransactWriteItems", transaction("list", 1, "a=a AND a=a")
    yield "a deep item", "PutItem", {"TableName": "dense", "Item": {"id": {"S": "deep"}, "a": nested(30, 1000)}}
    yield "refused: an item of 190,000 members", "PutItem", huge(1)
    yield "refused: the same, 31 lists deep", "PutItem", huge(31)
    yield (
        "a member added to the largest set",
        "UpdateItem",
        {
            "TableName": "dense",
            "Key": {"id": {"S": "set"}},
            "UpdateExpression": "ADD a :v",
            "ExpressionAttributeValues": {":v": {"SS": [f"z{number}" for number in range(400)]}},
        },
    )
    yield "a scan of dense items", "Scan", {"TableName": "dense"}
    yield "refused: 100 heavy conditions", "TransactWriteItems", transaction("set", 100, " AND ".join(["a=a"] * 140))
    yield (
        "10 items of 390 KB",
        "/v1/items/get",
        {"requests": [{"tableName": "large", "key": {"id": {"S": f"{number:04}"}}} for number in range(10)]},
    )


def transaction(item, count, condition):
    """A transaction that only checks items."""
    entries = [
        {"TableName": "dense", "Key": {"id": {"S": f"{item}{number}"}}, "ConditionExpression": condition}
        for number in range(count)
    ]
    return {"TransactItems": [{"ConditionCheck": entry} for entry in entries]}


def nested(levels, members):
    """Lists of one list each, around a list of so many members. The engine reads each member anew at each level."""
    value: dict[str, list[object]] = {"L": [{"BOOL": True}] * members}
    for _ in range(1, levels):
        value = {"L": [value]}
    return value


def huge(levels):
    """A request that writes as many members as DynamoDB allows."""
    return {"TableName": "dense", "Item": {"id": {"S": "huge"}, "a": nested(levels, 190_000)}}


def dense():
    """Items whose attributes have nearly as many members as are allowed, by id."""
    yield "list0", nested(1, 35_000)
    for number in range(10):
        yield f"numbers{number}", {"NS": [str(member) for member in range(1000)]}
    for number in range(100):
        yield f"some{number}", {"SS": [str(member) for member in range(20)]}
        yield f"set{number}", {"SS": [f"{member:x}" for member in range(20_000)]}


class Service:
    """`leasehold serve`, with its tables filled."""

    def __init__(self, folder, store):
        arguments = [BINARY, "serve", *store, "--listen", "127.0.0.1:0", "--expose-dynamodb", "0"]
        self.process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.url = self.dynamodb = ""
        for line in self.process.stdout:
            if line.startswith("Leasehold listens on "):
                self.url = line.split()[-1]
            if line.startswith("  dynamodb "):
                self.dynamodb = line.split()[1]
            if line.startswith("  stop "):
                break
        self.fill()

    def call(self, operation, body):
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"DynamoDB_20120810.{operation}",
            # The port asks for a signature, and does not check it.
            "authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/any/dynamodb/aws4_request, "
            "SignedHeaders=host, Signature=0",
            "x-amz-date": "20260101T000000Z",
        }
        return self.exchange(self.dynamodb, "POST", "/", json.dumps(body), headers)

    def fill(self):
        for table in ["items", "large", "dense"]:
            self.call(
                "CreateTable",
                {
                    "TableName": table,
                    "BillingMode": "PAY_PER_REQUEST",
                    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
                },
            )
        deep: dict[str, Any] = {"S": "z"}
        for _ in range(8):
            deep = {"M": {"x": deep, "y1": {"S": "y"}}}
        for number in range(ITEMS):
            item: dict[str, Any] = {f"a{member:02}": {"S": "x"} for member in range(MEMBERS)}
            item |= {"id": {"S": f"{number:04}"}, "m": deep, "words": {"S": "xy" * 200}}
            self.call("PutItem", {"TableName": "items", "Item": item})
        for number in range(10):
            item = {"id": {"S": f"{number:04}"}, "text": {"S": "x" * 390_000}}
            self.call("PutItem", {"TableName": "large", "Item": item})
        for key, value in dense():
            self.call("PutItem", {"TableName": "dense", "Item": {"id": {"S": key}, "a": value}})
        self.call("PutItem", {"TableName": "dense", "Item": {"id": {"S": "set"}, "a": {"SS": ["z"]}}})
        self.post("/v1/acquire", {"key": "held", "ownerName": "me", "leaseId": "l", "leaseDurationMs": 3_600_000})

    def post(self, path, body):
        """Sends one request, to the service by its path or to the exposed port by an operation's name."""
        if not path.startswith("/"):
            return self.call(path, body)
        return self.exchange(self.url, "POST", path, json.dumps(body), {"content-type": "application/json"})

    @staticmethod
    def exchange(url, method, path, body=None, headers=None):
        """Sends one request on a connection of its own, and returns status and body."""
        connection = HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=120)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content


def attacked(service, steady, name, path, body, seconds):
    """The time of one such request alone, and what the steady callers saw beside four that repeat it."""
    alone = []
    for _ in range(3):
        began = time.monotonic()
        status, content = service.post(path, body)
        alone.append((time.monotonic() - began) * 1000)
        # A busy machine may not carry out such a page in the time that DynamoDB has for it.
        assert status in ([400] if name.startswith("refused") else [200, 503]), content[:300]
    stop = threading.Event()

    def attack():
        while not stop.is_set():
            service.post(path, body)

    threads = [threading.Thread(target=attack) for _ in range(ATTACKERS)]
    steady.seen()
    for thread in threads:
        thread.start()
    try:
        time.sleep(seconds)
        return statistics.median(alone), steady.seen()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def row(name, alone, seen):
    """Prints a row of the table."""
    assert not seen.failures, seen.failures[:3]
    print(
        f"| {name} | {alone} | {figures(seen.health)} | {figures(seen.heartbeats)} | {figures(seen.probe)} |",
        flush=True,
    )


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        service = Service(folder, ["--db", sys.argv[2]] if len(sys.argv) > 2 else ["--memory"])
        try:
            steady = Steady(service.url.removeprefix("http://").rstrip("/"), HOLDERS, PAUSE)
            print("| request | one alone, ms | health: p50 / p99 / p99.9 / longest, ms | heartbeat | probe |")
            print("|---|---|---|---|---|")
            time.sleep(seconds)
            row("none", "-", steady.seen())
            for name, path, body in attacks():
                alone, seen = attacked(service, steady, name, path, body, seconds)
                row(name, f"{alone:.0f}", seen)
            steady.end()
        finally:
            service.process.terminate()
            service.process.wait()


if __name__ == "__main__":
    main()
