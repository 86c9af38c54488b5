"""The real service, a proxy that breaks it, and clients of both."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
import urllib3
from anyio.from_thread import start_blocking_portal
from bridge import Bridge
from proxy import Proxy

from leasehold import Client, VersionMismatch, aio

# A job in a script's background starts with SIGINT ignored. The tests of interrupts need it, here and in the
# processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

PACKAGE = Path(__file__).resolve().parent.parent

TABLE = "accounts"
"""The table of a `Bank`: its key is `id`, a text."""


class MakeClient(Protocol):
    def __call__(self, url: Any = None, **arguments: Any) -> Client: ...


class RunPython(Protocol):
    def __call__(self, code: str, *arguments: str) -> subprocess.Popen[str]: ...


def binary() -> str:
    """The program `leasehold`."""
    path = os.environ.get("LEASEHOLD_BIN", str(PACKAGE.parent.parent / "target" / "debug" / "leasehold"))
    if not Path(path).is_file():
        pytest.fail(f"there is no {path}: run `cargo build`, or set LEASEHOLD_BIN", pytrace=False)
    return path


def serve(
    *arguments: str, store: tuple[str, ...] = ("--memory",), environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], str]:
    """Starts `leasehold serve` on a free port; returns it and its URL."""
    process = subprocess.Popen(
        [binary(), "serve", *store, "--listen", "127.0.0.1:0", *arguments],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "listens on" in first, f"leasehold serve said {first!r}"
    return process, first.split()[-1]


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    process, url = serve()
    yield url
    stop(process)


@pytest.fixture(scope="session")
def sorted_service() -> Iterator[str]:
    """A service whose table has a sort key."""
    process, url = serve("--sort-key", "part")
    yield url
    stop(process)


@dataclass
class Bank:
    """A service for one test, and its DynamoDB."""

    url: str
    dynamodb: str
    pool: urllib3.PoolManager = field(default_factory=urllib3.PoolManager)

    def call(self, operation: str, body: dict[str, Any]) -> Any:
        """Calls DynamoDB without the service."""
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            # The engine wants the header, and does not check it.
            "Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/any/dynamodb/aws4_request, "
            "SignedHeaders=host, Signature=any",
            "X-Amz-Date": "20260101T000000Z",
        }
        answer = self.pool.request("POST", self.dynamodb, body=json.dumps(body), headers=headers)
        assert answer.status == 200, answer.data
        return answer.json()

    def raw(self, account: str) -> dict[str, Any] | None:
        """The item as it is, locks and all."""
        item: dict[str, Any] | None = self.call(
            "GetItem", {"TableName": TABLE, "Key": {"id": {"S": account}}, "ConsistentRead": True}
        ).get("Item")
        return item

    def open(self, balance: int) -> str:
        """A new account, whose id no other test has."""
        account = f"account-{uuid.uuid4()}"
        item = {"id": {"S": account}, "balance": {"N": str(balance)}}
        self.call("PutItem", {"TableName": TABLE, "Item": item})
        return account

    def balance(self, account: str) -> int:
        """Returns the balance of an account, and checks that no transaction left anything on it."""
        deadline = time.monotonic() + 60
        # A busy service frees the items behind its answer.
        while set(item := self.raw(account) or {}) != {"id", "balance"}:
            assert time.monotonic() < deadline, item
            time.sleep(0.02)
        return int(item["balance"]["N"])


@pytest.fixture(scope="session")
def bank() -> Iterator[Bank]:
    process, url = serve("--expose-dynamodb", "0", "--transaction-patience-ms", "2000")
    try:
        bank = Bank(url, exposed(process))
        bank.call(
            "CreateTable",
            {
                "TableName": TABLE,
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            },
        )
        yield bank
        bank.pool.clear()
    finally:
        stop(process)


def exposed(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    while "dynamodb" not in (line := process.stdout.readline()):
        assert line, "it did not say where its DynamoDB is"
    return line.split()[1]


@pytest.fixture
def proxy(service: str) -> Iterator[Proxy]:
    with Proxy(service) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the last request of a wait five seconds for the one that it has, which a pause of the machine outlives."""
    monkeypatch.setattr("leasehold._timing._LAST_LOOK", 5.0)


@pytest.fixture
def kind() -> str:
    """The kind of the clients: `threads`, or the name of a library with an event loop."""
    return "threads"


@pytest.fixture
def make_client(kind: str, service: str, proxy: Proxy) -> Iterator[MakeClient]:
    """Makes clients that poll often, and closes them at the end, when the proxy lets everything pass.

    Their lease outlasts every pause of a busy machine. A test of a lease's end names a shorter one.
    """
    clients: list[Client] = []
    with ExitStack() as stack:
        portal = None if kind == "threads" else stack.enter_context(start_blocking_portal(kind))

        def make(url: Any = None, **arguments: Any) -> Client:
            arguments = {"lease": 20.0, "poll_interval": 0.1, **arguments}
            if portal is None:
                clients.append(Client(url or service, **arguments))
            else:
                made = portal.call(lambda: aio.Client(url or service, **arguments))
                clients.append(cast(Client, Bridge(portal, made)))
            return clients[-1]

        yield make
        proxy.let_pass()
        for client in clients:
            client.close()
    if portal is not None:
        with warnings.catch_warnings():
            # A connection whose request was under way when the loop ended. Another test must not find it.
            warnings.simplefilter("ignore", ResourceWarning)
            clients.clear()
            gc.collect()


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client()


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"key-{uuid.uuid4()}"


@pytest.fixture
def run_python() -> Iterator[RunPython]:
    """Runs code in other Python processes, and kills the remaining ones."""
    processes: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Returns the output of a process that ended well and in time."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out


def eventually(condition: Callable[[], object], within: float = 60.0) -> None:
    """Waits until it is true."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def broken(operator: Client, key: str, sort_key: str | None = None) -> None:
    """Breaks the lock, even if heartbeats come in between."""
    while True:
        try:
            version = operator.get(key, sort_key=sort_key).record_version_number
            operator.break_lock(key, version, sort_key=sort_key)
        except VersionMismatch:
            continue
        return


def keeper_threads() -> int:
    return sum(thread.name == "leasehold-keeper" for thread in threading.enumerate())
