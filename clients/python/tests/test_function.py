"""Direct invocations of the real function, without an API before it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import PACKAGE, TABLE, Bank, broken, eventually
from function import Lambda

pytest.importorskip("botocore", reason="the extra leasehold[aws] is not installed")

import anyio
from botocore.credentials import Credentials

from leasehold import (
    Client,
    Forbidden,
    Guard,
    Held,
    InvalidRequest,
    LockLost,
    LockNotFound,
    Throttled,
    Transaction,
    Unavailable,
    VersionMismatch,
    aio,
)
from leasehold._messages import Call
from leasehold.aws import Function

CREDENTIALS = Credentials("AKIDEXAMPLE", "a-secret")


@pytest.fixture(scope="module")
def lambda_(bank: Bank) -> Iterator[Lambda]:
    serve = Path(os.environ.get("LEASEHOLD_BIN", PACKAGE.parent.parent / "target" / "debug" / "leasehold"))
    locks = Path(os.environ.get("LEASEHOLD_INVOKE_BIN", serve.with_name("leasehold-locks")))
    transactions = locks.with_name("leasehold-transactions")
    for binary in (locks, transactions):
        if not binary.is_file():
            pytest.fail(f"there is no {binary}: run `cargo build --workspace`", pytrace=False)

    def environment(handler: str) -> dict[str, str]:
        return {
            "_HANDLER": handler,
            "LEASEHOLD_TABLE_NAME": "leasehold",
            "LEASEHOLD_TRANSACTION_TABLE_NAME": "leasehold-transactions",
            "AWS_ENDPOINT_URL_DYNAMODB": bank.dynamodb,
        }

    with (
        Lambda(transactions, environment("transact")) as transact,
        Lambda(locks, environment("invoke"), {"leasehold-transact": transact}) as running,
    ):
        yield running


@pytest.fixture
def function(lambda_: Lambda) -> Iterator[Function]:
    lambda_.invocations.clear()
    yield Function(
        "leasehold-invoke",
        transact_function="leasehold-transact",
        region="eu-west-1",
        credentials=CREDENTIALS,
        endpoint_url=lambda_.url,
    )
    lambda_.refusal = None


@pytest.fixture
def client(function: Function) -> Iterator[Client]:
    with Client(function, lease=20.0, heartbeat_interval=0.3, poll_interval=0.1, owner_name="direct") as client:
        yield client


def test_lock_lives_without_an_api(client: Client, bank: Bank, key: str) -> None:
    guard = client.acquire(key, data=b"\x00payload").granted()
    with Client(bank.url, owner_name="by the API") as other:
        held = other.try_acquire(key)
        assert isinstance(held, Held), "both see one table"
        assert held.lock.owner_name == "direct"
        refused = client.try_acquire(key)
        assert isinstance(refused, Held)
        assert (refused.lock.owner_name, refused.lock.lease) == ("direct", 20.0)
        version = guard.record_version_number
        eventually(lambda: guard.record_version_number != version)
        assert client.get(key).data == b"\x00payload"
        with pytest.raises(VersionMismatch):
            client.break_lock(key, "another version")
        broken(client, key)
        assert guard.wait_lost(60) == "released"
        with pytest.raises(LockLost) as error:
            client.heartbeat(key, guard.lease_id)
        assert (error.value.key, error.value.reason) == (key, "released")
        again = other.acquire(key).granted()
        assert again.fencing_token > guard.fencing_token


def test_refusals_of_the_function_have_their_errors(client: Client, key: str) -> None:
    with pytest.raises(LockNotFound):
        client.get(key)
    with pytest.raises(LockNotFound):
        client.acquire(key, only_if_exists=True)
    with pytest.raises(InvalidRequest) as error:
        client.try_acquire(key, attributes={"leaseDuration": "1"})
    assert "attributes" in str(error.value.field)
    with pytest.raises(InvalidRequest, match="HTTP API"):
        list(client.list())


def test_refusals_of_lambda_have_their_errors(client: Client, lambda_: Lambda, key: str) -> None:
    for status, document, kind in (
        (403, {"Message": "User: … is not authorized to perform: lambda:InvokeFunction"}, Forbidden),
        (429, {"Type": "User", "Message": "Rate exceeded", "Reason": "Concurrent…"}, Throttled),
        (404, {"Type": "User", "Message": "Function not found: …"}, InvalidRequest),
        (500, {"Type": "Service", "Message": "…"}, Unavailable),
    ):
        lambda_.refusal = status, document
        with pytest.raises(kind) as error:
            client.try_acquire(key)
        assert type(error.value) is kind
        assert document["Message"] in str(error.value)
        assert getattr(error.value, "sent", False) is (status == 500)


def test_invocations_are_signed_for_lambda(lambda_: Lambda, key: str) -> None:
    arn = "arn:aws:lambda:eu-west-1:123456789012:function:leasehold-invoke"
    function = Function(arn, qualifier="live", region="eu-west-1", credentials=CREDENTIALS, endpoint_url=lambda_.url)
    with Client(function) as client:
        assert isinstance(client.try_acquire(key), Guard)
    # A client of another test may still invoke the function in the background.
    path, headers, body = next(one for one in lambda_.invocations if one[2]["key"] == key)
    expected = "arn%3Aaws%3Alambda%3Aeu-west-1%3A123456789012%3Afunction%3Aleasehold-invoke"
    assert path == f"/2015-03-31/functions/{expected}/invocations?Qualifier=live"
    assert "/eu-west-1/lambda/aws4_request" in headers["authorization"]
    assert headers["x-amz-invocation-type"] == "RequestResponse"
    assert (body["action"], body["key"]) == ("acquire", key)


def test_permits_and_several_locks_live_without_an_api(client: Client, key: str) -> None:
    semaphore = client.semaphore(key, 2)
    guard = semaphore.acquire(2, lease=20.0, heartbeat_interval=5.0).granted()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(semaphore.acquire, wait=0.5).result()
    assert isinstance(waiting, Held), "it polled: there is no invocation that watches"
    guard.keep(1)
    semaphore.acquire().granted().release()
    (holder,) = client.get_semaphore(key).holders
    assert holder.permits == 1
    assert client.set_capacity(key, 3, 2) == 2
    assert client.break_entry(key, holder.holder_id, holder.version) == "released"
    with pytest.raises(LockLost):
        guard.renew()
    with client.lock_all([key + "-a", key + "-b"]) as both:
        both.renew()
        assert client.get(key + "-a").fencing_token == both.fencing_token


def test_transactions_live_without_an_api(client: Client, bank: Bank) -> None:
    moe = bank.open(100)

    def spend(tx: Transaction) -> None:
        account = tx.get(TABLE, {"id": moe})
        assert account is not None
        tx.put(TABLE, {"id": moe, "balance": account["balance"] - 30})

    client.transaction(spend)
    assert bank.balance(moe) == 70
    assert client.read_item(TABLE, {"id": moe}) == {"id": moe, "balance": 70}
    items = client.list_items(TABLE, key_condition="id = :id", values={":id": moe})
    assert list(items) == [{"id": moe, "balance": 70}]
    with client.begin_transaction() as tx:
        tx.update(TABLE, {"id": moe}, "ADD balance :x", {":x": 1})
    assert client.transaction_status(tx.id).state == "committed"


def test_function_that_was_not_named_is_asked_for(lambda_: Lambda, key: str) -> None:
    function = Function("leasehold-invoke", region="eu-west-1", credentials=CREDENTIALS, endpoint_url=lambda_.url)
    with Client(function) as client:
        with pytest.raises(InvalidRequest) as error:
            client.transact([{"Put": {"TableName": TABLE, "Item": {"id": key}}}])
        assert error.value.field == "transact_function"


def test_trace_context_is_in_the_client_context(function: Function, lambda_: Lambda, key: str) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
    call = Call("GET", "/v1/lock", {"key": key})
    call.headers = {**trace, "baggage": "x" * 4000}
    request = function.make(call)
    assert "x-amz-client-context" in request.headers["Authorization"], "it is signed"
    context = json.loads(base64.b64decode(request.headers["X-Amz-Client-Context"]))
    assert context == {"custom": trace}, "there is no room for baggage"


def test_endpoint_is_awss_own() -> None:
    assert Function("f", region="eu-west-1", credentials=CREDENTIALS).url == "https://lambda.eu-west-1.amazonaws.com"
    china = Function("f", region="cn-north-1", credentials=CREDENTIALS).url
    assert china == "https://lambda.cn-north-1.amazonaws.com.cn"


def test_options_for_a_url_are_refused(function: Function) -> None:
    with pytest.raises(InvalidRequest):
        Client(function, token="a token")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_asynchronous_client_invokes_too(function: Function, key: str, backend: str) -> None:
    async def main() -> None:
        async with aio.Client(function, lease=20.0) as client:
            async with client.lock(key) as guard:
                await guard.renew(data="x")
            assert (await client.get(key)).state == "released"

    anyio.run(main, backend=backend)
