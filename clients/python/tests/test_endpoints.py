"""Several endpoints of one service, of which some fail (C11 of docs/client.md)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from conftest import MakeClient, eventually, exposed, serve, stop
from proxy import Answer, Fault, Hang, Proxy

from leasehold import Client, Guard, InvalidRequest, LeaseholdError, PermitGuard, Request, Unavailable
from leasehold.aws import SigV4

pytestmark = pytest.mark.parametrize("kind", ["threads", "asyncio"])


@pytest.fixture
def other(service: str) -> Iterator[Proxy]:
    """Another endpoint of the same service."""
    with Proxy(service) as other:
        yield other


def nowhere() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def granted(client: Client, key: str, **options: Any) -> Guard:
    guard = client.acquire(key, **options)
    assert isinstance(guard, Guard)
    return guard


def bodies(proxy: Proxy, action: str) -> list[dict[str, Any]]:
    return [request.body for request in proxy.seen if request.action == action]


def test_one_request_passes_an_endpoint_that_is_dead(make_client: MakeClient, other: Proxy, key: str) -> None:
    client = make_client(f"{nowhere()}, {other.url}")
    guard = client.try_acquire(key)
    assert isinstance(guard, Guard)
    guard.release()
    assert [request.action for request in other.seen] == ["acquire", "release"]


def test_silent_endpoint_takes_a_part_of_the_lease(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str
) -> None:
    client = make_client([proxy.url, other.url])
    guard = granted(client, key)
    proxy.fault = lambda request: Hang()
    eventually(lambda: len(bodies(other, "heartbeat")) >= 2)
    assert guard.valid
    assert bodies(proxy, "heartbeat") == bodies(other, "heartbeat")[:1]  # under the same number
    # The first one is well again: the endpoint that answered stays.
    proxy.fault = lambda request: None
    guard.release()
    granted(client, key).release()
    assert [request.action for request in proxy.seen] == ["acquire", "heartbeat"]


def test_three_silent_endpoints_leave_time_for_the_fourth(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str
) -> None:
    # Connections are made, and nobody accepts them.
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        silent = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in (one, two)]
        guard = granted(make_client([proxy.url, *silent, other.url]), key)
        version = guard.record_version_number
        proxy.fault = lambda request: Hang()
        eventually(lambda: guard.record_version_number != version)
        assert guard.valid
        assert bodies(proxy, "heartbeat")[0] == bodies(other, "heartbeat")[0]
        guard.release()


def test_acquire_is_repeated_under_its_lease_id_and_number(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str
) -> None:
    proxy.fault = lambda request: Hang()
    granted(make_client([proxy.url, other.url]), key).release()
    (silent,), (answered,) = bodies(proxy, "acquire"), bodies(other, "acquire")
    assert silent == answered
    assert (answered["sequence"], bool(answered["leaseId"])) == (1, True)


def test_grant_that_nobody_awaits_is_released_elsewhere(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str
) -> None:
    proxy.fault = lambda request: Hang()
    client = make_client([proxy.url, other.url], lease=4)
    with pytest.raises(Unavailable, match=proxy.url):
        client.try_acquire(key)
    eventually(lambda: bodies(other, "release"))
    assert bodies(other, "release")[0]["leaseId"] == bodies(proxy, "acquire")[0]["leaseId"]


OWN = {"title": "t", "detail": "d"}


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (Answer(500), True),
        (Answer(502), True),
        (Answer(503), True),
        (Answer(504), True),
        # The service cannot reach its table.
        (Answer(503, json.dumps({**OWN, "status": 503, "type": "unavailable"}).encode(), {"Retry-After": "1"}), True),
        (Answer(502, b'{"status":502,"detail":"d"}'), True),
        # A gateway's, after its pause.
        (Answer(503, headers={"Retry-After": "1"}), True),
        (Answer(408, headers={"Retry-After": "1"}), True),
        # Another program's.
        (Answer(408), True),
        (Answer(200), True),
        (Answer(200, b"[]"), True),
        (Answer(200, b""), True),
        (Answer(204, b""), True),
        (Answer(302, headers={"Location": "/elsewhere"}), True),
        (Answer(307, headers={"Location": "/elsewhere", "Retry-After": "1"}), True),
        (Answer(401), False),
        (Answer(404), False),
        (Answer(413), False),
        (Answer(429, headers={"Retry-After": "1"}), False),
        (Answer(429, json.dumps({**OWN, "status": 429, "type": "throttled"}).encode(), {"Retry-After": "1"}), False),
        (Answer(429), False),
        (Answer(500, json.dumps({**OWN, "status": 500, "type": "misconfigured"}).encode()), False),
        (Answer(403), False),
        (Answer(404, json.dumps({**OWN, "status": 404, "type": "not-found"}).encode()), False),
    ],
)
def test_gateway_is_passed_and_an_answer_is_not(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str, fault: Fault, passes: bool
) -> None:
    client = make_client([proxy.url, other.url])
    proxy.fault = lambda request: fault if request.action == "acquire" else None
    for _ in range(2):
        with suppress(LeaseholdError):
            client.try_acquire(key)
    # What the first request left behind is released meanwhile.
    asked = len(bodies(proxy, "acquire")), len(bodies(other, "acquire"))
    assert asked == ((1, 1) if passes else (2, 0))


@pytest.mark.parametrize(
    "fault",
    [
        Answer(200),
        Answer(301),
        Answer(307, headers={"Retry-After": "1"}),
        Answer(408),
        Answer(503, headers={"Retry-After": "1"}),
    ],
)
def test_acquire_passes_an_endpoint_that_is_another_program(
    make_client: MakeClient, proxy: Proxy, other: Proxy, key: str, fault: Fault
) -> None:
    proxy.fault = lambda request: fault
    granted(make_client([proxy.url, other.url]), key).release()
    (foreign,), (answered,) = bodies(proxy, "acquire"), bodies(other, "acquire")
    assert foreign == answered


def test_error_names_all_endpoints_that_were_tried(make_client: MakeClient, key: str) -> None:
    first, second = nowhere(), nowhere()
    with pytest.raises(Unavailable) as caught:
        make_client([first, second]).try_acquire(key)
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert not caught.value.sent


def test_error_names_endpoints_of_earlier_tries(make_client: MakeClient, proxy: Proxy, other: Proxy, key: str) -> None:
    proxy.fault, other.fault = lambda request: Hang(), lambda request: Answer(502)
    with pytest.raises(Unavailable) as caught:
        make_client([proxy.url, other.url], lease=4).acquire(key, wait=3)
    assert proxy.url in str(caught.value)
    assert f"{other.url}: the answer is status 502" in str(caught.value)


def test_each_url_of_a_list_is_checked(make_client: MakeClient) -> None:
    for wrong in ["https://a.example.com,nonsense", "", ",", [], ["https://a.example.com", 7]]:
        with pytest.raises(InvalidRequest):
            make_client(wrong) if wrong else Client(wrong)  # type: ignore[arg-type]
    make_client("https://a.example.com,https://b.example.com,")


def test_signature_names_the_region_of_each_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)

    def scope(signer: SigV4, host: str) -> str:
        return signer(Request("GET", f"https://{host}/v1/lock?key=Moe", {}, None))["Authorization"].split("/")[2]

    signer, fixed = SigV4(), SigV4("eu-north-1")
    for host, region in [
        ("abc.execute-api.eu-central-1.amazonaws.com", "eu-central-1"),
        ("abc.execute-api.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("abc.lambda-url.eu-west-1.on.aws", "eu-west-1"),
        ("locks.example.com", "us-east-1"),
        ("a.execute-api.b.evil.com", "us-east-1"),
    ]:
        assert scope(signer, host) == region
        assert scope(fixed, host) == "eu-north-1"


@pytest.fixture
def regions() -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """Two services on the DynamoDB of a third one."""
    store, _ = serve("--expose-dynamodb", "0")
    started = [store]
    try:
        environment = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "eu-central-1"}
        on_store = ("--dynamodb-endpoint", exposed(store))
        both = [serve(store=on_store, environment=environment) for _ in range(2)]
        started += [process for process, _ in both]
        yield both
    finally:
        for process in started:
            stop(process)


def test_locks_outlive_the_kill_of_their_service(
    make_client: MakeClient, regions: list[tuple[subprocess.Popen[str], str]], key: str
) -> None:
    (first, first_url), (_, second_url) = regions
    client, elsewhere = make_client([first_url, second_url], lease=6), make_client(second_url)
    guard = granted(client, key)
    permits = client.semaphore(f"{key}-permits", 2).acquire(lease=6)
    assert isinstance(permits, PermitGuard)
    with ThreadPoolExecutor(1) as pool:
        holder = granted(elsewhere, f"{key}-other")
        waiting = pool.submit(lambda: client.acquire(f"{key}-other", wait=60))
        time.sleep(0.5)
        os.kill(first.pid, signal.SIGKILL)
        time.sleep(9)
        assert (guard.valid, permits.valid) == (True, True)
        assert elsewhere.get(key).fencing_token == guard.fencing_token
        holder.release()
        assert isinstance(waiting.result(60), Guard)
    guard.release()
    client.close()
    assert [elsewhere.get(name).state for name in (key, f"{key}-other")] == ["released", "released"]
