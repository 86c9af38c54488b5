"""The meaning of each answer, and the requests that are sent."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import MakeClient
from proxy import Answer, DropAnswer, Hang, Proxy, Refuse, only

from leasehold import (
    Client,
    CorruptRecord,
    Forbidden,
    Guard,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    Request,
    Throttled,
    Unavailable,
    VersionMismatch,
)
from leasehold._messages import Answer as HttpAnswer
from leasehold._messages import Call, refusal
from leasehold._proxies import environment_proxy

LOCK = {
    "key": "Moe",
    "state": "held",
    "ownerName": "host-1",
    "recordVersionNumber": "a",
    "leaseDurationMs": 20000,
}


CALL = Call("POST", "/v1/heartbeat", {"key": "Moe"})


@pytest.mark.parametrize(
    ("status", "problem", "error"),
    [
        (423, {"type": "held", "lock": LOCK}, LockHeld),
        (409, {"type": "lost", "reason": "taken-over", "lock": LOCK}, LockLost),
        (409, {"type": "version-mismatch"}, VersionMismatch),
        (404, {"type": "not-found"}, LockNotFound),
        (403, {"type": "forbidden"}, Forbidden),
        (404, {"type": "unknown-route"}, InvalidRequest),
        (405, {"type": "method-not-allowed"}, InvalidRequest),
        (400, {"type": "invalid-request", "field": "key"}, InvalidRequest),
        (413, {"type": "too-large"}, InvalidRequest),
        (415, {"type": "unsupported-media-type"}, InvalidRequest),
        (429, {"type": "throttled"}, Throttled),
        (503, {"type": "unavailable"}, Unavailable),
        (500, {"type": "corrupt-record"}, CorruptRecord),
        # A gateway or proxy answers with a document of its own.
        (401, {"message": "Unauthorized"}, Forbidden),
        (403, {"message": "Forbidden"}, Forbidden),
        (429, {"message": "Too Many Requests"}, Throttled),
        (503, {"message": "Service Unavailable"}, Unavailable),
        (504, None, Unavailable),
        (500, {"message": "Internal Server Error"}, Unavailable),
        (418, {"type": "a-kind-of-a-later-version"}, InvalidRequest),
        (503, {"type": "a-kind-of-a-later-version"}, Unavailable),
        (404, None, InvalidRequest),
        (302, None, InvalidRequest),
        (408, None, Unavailable),
        (204, None, Unavailable),
        # Refusals that cannot be read.
        (423, {"type": "held"}, Unavailable),
        (423, {"type": "held", "lock": {"key": 1}}, Unavailable),
        (409, {"type": "lost", "reason": "a-reason-of-a-later-version"}, Unavailable),
        (400, ["a", "list"], InvalidRequest),
    ],
)
def test_each_refusal_has_its_error(status: int, problem: Any, error: type[LeaseholdError]) -> None:
    if isinstance(problem, dict) and "type" in problem:
        problem["status"] = status
    assert type(refusal(CALL, HttpAnswer(status, {}, problem))) is error


def test_refusal_tells_what_it_knows() -> None:
    held = refusal(CALL, HttpAnswer(423, {"Retry-After": "7"}, {"status": 423, "type": "held", "lock": LOCK}))
    assert isinstance(held, LockHeld)
    assert (held.lock.owner_name, held.lock.lease, held.retry_after) == ("host-1", 20.0, 7.0)
    lost = refusal(CALL, HttpAnswer(409, {}, {"status": 409, "type": "lost", "reason": "taken-over", "lock": LOCK}))
    assert isinstance(lost, LockLost)
    assert lost.lock is not None
    assert (lost.key, lost.reason, lost.lock.owner_name) == ("Moe", "taken-over", "host-1")
    assert str(lost) == "the lock 'Moe' is lost: taken-over"
    invalid = refusal(CALL, HttpAnswer(400, {}, {"type": "invalid-request", "field": "leaseId", "detail": "no"}))
    assert isinstance(invalid, InvalidRequest)
    assert (invalid.field, str(invalid)) == ("leaseId", "leaseId: no")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(403, b'{"message":"Forbidden"}'), Forbidden),
        (Answer(429), Throttled),
        (Answer(503), Unavailable),
        (Answer(200), Unavailable),
        (Answer(200, b"[]"), Unavailable),
        (Answer(200, b'{"key":"Moe"}'), Unavailable),
        (Answer(404), InvalidRequest),
        (Refuse(), Unavailable),
        (DropAnswer(), Unavailable),
        (Hang(), Unavailable),
    ],
)
def test_try_acquire_is_one_request(
    proxy: Proxy, make_client: MakeClient, key: str, fault: Any, error: type[LeaseholdError]
) -> None:
    client = make_client(proxy.url, lease=4 if isinstance(fault, Hang) else 20)
    proxy.fault = lambda request: fault if request.action == "acquire" else None
    with pytest.raises(LeaseholdError) as raised:
        client.try_acquire(key)
    assert type(raised.value) is error
    assert proxy.count("acquire") == 1


def test_closed_port_is_unavailable_with_nothing_to_release(make_client: MakeClient, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = make_client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unavailable) as error:
            client.try_acquire(key)
    assert not error.value.sent
    assert not client._core.unsettled


@pytest.mark.parametrize("token", ["secret\n", "sec\rret", "sécret"])
def test_token_that_no_header_can_have_is_refused_not_shown(make_client: MakeClient, token: str) -> None:
    for given in (token, lambda: token):
        with pytest.raises(InvalidRequest, match="not one line of printable ASCII") as error:
            make_client(token=given).try_acquire("Moe")
        assert "cret" not in str(error.value)


def test_unavailable_names_the_url_and_the_reason(make_client: MakeClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"from http://127.0.0.1:{port}/v1/acquire: .*refused"):
            make_client(f"http://127.0.0.1:{port}").try_acquire("Moe")
    with pytest.raises(Unavailable, match=r"from http://nowhere\.invalid/v1/acquire: .*(not known|resolution)"):
        make_client("http://nowhere.invalid").try_acquire("Moe")


def test_try_acquire_survives_an_idle_connection_that_was_closed(
    proxy: Proxy, make_client: MakeClient, key: str
) -> None:
    client = make_client(proxy.url)
    client.acquire(key, manual_heartbeats=True).granted().release()
    proxy.fault = only("acquire", Refuse(), times=1)
    guard = client.try_acquire(key)
    assert isinstance(guard, Guard)
    sent = [request.body["leaseId"] for request in proxy.seen if request.action == "acquire"]
    assert sent[1:] == [guard.lease_id] * 2, "the same request, on a new connection"


def test_proxy_of_the_environment_is_used(
    proxy: Proxy, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:p%40ss@"))
    proxy.fault = lambda request: Answer(404, b'{"type":"not-found","status":404}')
    with pytest.raises(LockNotFound):
        make_client("http://service.example/prod").get("x")
    (seen,) = proxy.seen
    assert seen.path == "http://service.example/prod/v1/lock?key=x"
    assert seen.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
    monkeypatch.setenv("no_proxy", "service.example")
    with pytest.raises(Unavailable, match=r"service\.example"):
        make_client("http://service.example").try_acquire("x")
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(InvalidRequest, match="proxy"):
        Client("http://service.example")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:1", "http://localhost:1", "http://a.localhost"],
)
def test_no_proxy_is_used_for_loopback(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    assert environment_proxy(url) is None
    assert environment_proxy("https://service.example") == "http://proxy.example:3128"


def test_redirects_are_not_followed(proxy: Proxy, make_client: MakeClient, service: str) -> None:
    proxy.fault = lambda request: Answer(307, headers={"Location": f"{service}/v1/lock?key=x"})
    with pytest.raises(InvalidRequest, match="307"):
        make_client(proxy.url).get("x")


def test_tokens_headers_and_signatures_are_sent(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    tokens = iter(["one", "two"])
    signed: list[Request] = []

    def auth(request: Request) -> Mapping[str, str]:
        signed.append(request)
        return {"X-Signature": "signed"}

    client = make_client(proxy.url + "/", token=lambda: next(tokens), headers={"X-Team": "export"}, auth=auth)
    with pytest.raises(LockNotFound):
        client.get(key)
    list(client.list(key=key))
    first, second = proxy.seen
    assert [seen.headers["Authorization"] for seen in proxy.seen] == ["Bearer one", "Bearer two"]
    assert first.headers["X-Team"] == first.headers["X-Signature"].replace("signed", "export") == "export"
    assert [request.url.removeprefix(proxy.url) for request in signed] == [first.path, second.path]


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://host", "http://", "http://host/?a=b"])
def test_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Client(url)


def test_base_url_may_have_a_path(proxy: Proxy, make_client: MakeClient) -> None:
    with pytest.raises(InvalidRequest):
        make_client(proxy.url + "/stage/").get("x")
    assert proxy.seen[0].path == "/stage/v1/lock?key=x"


def test_lease_ids_are_never_shown(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[object] = []

    def auth(request: Request) -> Mapping[str, str]:
        shown.append(request)
        return {}

    with caplog.at_level(logging.DEBUG):
        client = make_client(proxy.url, auth=auth)
        guard = client.acquire(key).granted()
        shown += [guard, client.try_acquire(key), vars(client)]
        proxy.fault = lambda request: Answer(503)
        with pytest.raises(LockLost) as error:
            guard.renew()
        shown += [error.value, error.value.__cause__, error]
        proxy.fault = lambda request: None
        client.release(key, guard.lease_id)
    assert isinstance(guard, Guard)
    assert guard.lease_id
    assert guard.lease_id not in "".join(map(repr, shown)) + "".join(map(str, shown)) + caplog.text
    assert key in caplog.text + repr(guard)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_request_that_was_sent_twice_may_have_been_carried_out(make_client: MakeClient, key: str) -> None:
    def read(connection: socket.socket) -> None:
        text = b""
        while not text.endswith((b"}", b"\r\n\r\n")) or (text.startswith(b"POST") and not text.endswith(b"}")):
            text += connection.recv(4096)

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                read(connection)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                read(connection)
                listener.close()  # nobody is there for the second sending

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    client = make_client(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(InvalidRequest):
        client.get(key)
    with pytest.raises(Unavailable) as caught:
        client.try_acquire(key)
    thread.join()
    assert caught.value.sent
