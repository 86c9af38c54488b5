"""Mistakes in the set-up: each ends soon, and its text says what is wrong and what to do."""

from __future__ import annotations

import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeClient, RunPython, binary, finished, serve, stop
from proxy import Answer, DropAnswer, Proxy, Refuse
from urllib3.exceptions import SSLError

from leasehold import Client, Forbidden, InvalidRequest, LockNotFound, Misconfigured, Unavailable
from leasehold._http import _never_connected
from leasehold._messages import Call, unavailable
from leasehold._world import World


class Hasty(World):
    """Each look at the clock takes a tenth of a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 0.1
        return self.time

    def chance(self) -> float:
        return 0.0


class Unreachable:
    """A transport whose connections fail."""

    async def send(self, call: Call, timeout: float) -> Any:
        raise unavailable("http://127.0.0.1:1/v1", OSError("cannot connect"), sent=False)

    def reset(self) -> None: ...

    async def close(self) -> None: ...


def unreachable(world: World) -> Client:
    client = Client("http://127.0.0.1:1", world=world)
    client._core.api.transport = Unreachable()
    return client


@pytest.mark.parametrize("wait", ["lease", "extend"])
def test_service_that_was_never_reached_is_given_up_soon(wait: Any, key: str) -> None:
    world = Hasty()
    client = unreachable(world)
    with pytest.raises(Unavailable, match="cannot connect"):
        client.acquire(key, wait=wait)
    assert world.time < 5
    world.time = 0.0
    with pytest.raises(Unavailable, match="cannot connect"):
        client.get(key)
    assert world.time < 5


def test_wait_that_the_caller_chose_is_kept(key: str, caplog: pytest.LogCaptureFixture) -> None:
    world = Hasty()
    with caplog.at_level(logging.WARNING, "leasehold"), pytest.raises(Unavailable):
        unreachable(world).acquire(key, wait=60)
    assert world.time > 60
    (told,) = caplog.messages
    assert told.startswith("trying again: no answer from http://127.0.0.1:1/v1: cannot connect"), (
        "told at once, and once"
    )


def test_service_that_has_answered_is_waited_for(key: str, proxy: Proxy) -> None:
    world = Hasty()
    client = Client(proxy.url, world=world)
    proxy.fault = lambda request: Answer(404, b'{"type":"not-found","status":404}')
    with pytest.raises(LockNotFound):
        client.get(key)
    client._core.api.transport = Unreachable()
    begun = world.time
    with pytest.raises(Unavailable):
        client.acquire(key)
    assert world.time - begun > 9


def test_request_that_may_have_arrived_is_repeated(key: str, proxy: Proxy) -> None:
    world = Hasty()
    proxy.fault = lambda request: DropAnswer()
    with pytest.raises(Unavailable):
        Client(proxy.url, world=world).get(key)
    assert world.time > 9


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_each_mistake_in_the_address_says_what_to_do(
    service: str, make_client: MakeClient, key: str, kind: str
) -> None:
    def text(url: Any, expected: type[Exception]) -> str:
        with pytest.raises(expected) as error:
            make_client(url).try_acquire(key)
        assert not getattr(error.value, "sent", False)
        return str(error.value)

    port = "http://127.0.0.1:1"
    assert f"{port}/v1/acquire" in text(port, Unavailable)
    assert text(port, Unavailable).endswith(": check the URL, and that the service runs")
    assert "no-such-host.invalid" in text("http://no-such-host.invalid", Unavailable)
    assert "check the URL" in text(service.replace("http:", "https:"), Unavailable)
    assert "check the path of the URL" in text(f"{service}/prod", InvalidRequest)
    assert "must be http:// or https://" in text("localhost:8080", InvalidRequest)
    for secret in (
        "user:secret@127.0.0.1:1",
        "secret@127.0.0.1:1",
        "user:sec/ret@127.0.0.1:1",
        "user:secret@[127.0.0.1",
    ):
        for url in (f"http://{secret}", f"{service},https://{secret}/prod"):
            refusal = text(url, InvalidRequest)
            assert refusal == "base_url: must have no user, no password and no @: use token, headers or auth"
    if kind == "threads":
        with pytest.raises(InvalidRequest, match=r"base_url: must be a URL, or .*, not None"):
            Client(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_advice_on_the_url_ends_with_the_first_answer(
    proxy: Proxy, make_client: MakeClient, key: str, kind: str
) -> None:
    def refused() -> str:
        proxy.fault = lambda request: Refuse() if request.action == "acquire" else None
        with pytest.raises(Unavailable) as caught:
            client.try_acquire(key)
        return str(caught.value)

    client = make_client(proxy.url)
    assert "needs https://" in refused()
    proxy.fault = lambda request: Answer(404)
    with pytest.raises(InvalidRequest):
        client.get(key)
    assert "https" not in refused()


def test_gateways_own_words_are_told(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    proxy.fault = lambda request: Answer(404, b'{"message":"Not Found"}')
    with pytest.raises(InvalidRequest, match=r"check the path of the URL .*404, .*: Not Found"):
        make_client(proxy.url).try_acquire(key)
    proxy.fault = lambda request: Answer(500, b'{"type":"misconfigured","status":500,"detail":"No table."}')
    with pytest.raises(Misconfigured, match="No table"):
        make_client(proxy.url).acquire(key, wait=None)
    assert proxy.count("acquire") == 2, "it is certain, and not tried again"


def test_unknown_token_is_told_from_a_missing_one(make_client: MakeClient, key: str, tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    made = subprocess.run([binary(), "token", "--file", file, "bob"], capture_output=True, text=True, check=True)
    process, url = serve("--token-file", file)
    try:
        with pytest.raises(Forbidden, match="asks for a token"):
            make_client(url).try_acquire(key)
        with pytest.raises(Forbidden, match="does not know the token that was sent"):
            make_client(url, token="another").try_acquire(key)
        make_client(url, token=made.stdout.strip()).acquire(key).granted().release()
    finally:
        stop(process)


def test_failed_handshake_comes_before_the_request() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert _never_connected(SSLError(error))
    assert not _never_connected(SSLError(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")))


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("aws", "botocore", "aws"), ("aio", "httpx", "aio"), ("aio", "anyio", "aio")],
)
def test_missing_extra_is_named(run_python: RunPython, module: str, missing: str, extra: str) -> None:
    code = """
        import importlib, sys
        sys.modules[sys.argv[2]] = None
        try:
            importlib.import_module("leasehold." + sys.argv[1])
        except ModuleNotFoundError as error:
            print(error)
        """
    assert f"pip install 'leasehold[{extra}]'" in finished(run_python(code, module, missing))
