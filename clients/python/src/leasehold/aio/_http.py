"""The transport of the asynchronous client: HTTP with httpx."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

import anyio
import httpx

from .._messages import Answer, Call, Request, Service, unavailable
from .._proxies import environment_proxy
from ..errors import InvalidRequest

MakeClient: TypeAlias = Callable[[], httpx.AsyncClient]
"""Makes the HTTP client: for a private CA or a client certificate. Called again after a fork."""

_MOST_AT_ONCE = 64
"""Requests under way that the service answers at once. A thousand heartbeats at the same time need no more
connections, and a thousand connections would only keep each other waiting."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class HttpxTransport:
    """Sends requests to one service."""

    def __init__(self, service: Service, make_client: MakeClient | None, tls: ssl.SSLContext | None = None) -> None:
        self._service = service
        self._make_client = make_client or partial(_default_client, service.url, tls)
        self._client = self._make_client()
        self._under_way = 0
        self._room: anyio.Semaphore | None = None  # made in the event loop
        self._is_closed = False
        self._answered = False

    def reset(self) -> None:
        self._client, self._under_way, self._room = self._make_client(), 0, None

    async def close(self) -> None:
        """Closes the connections; and those of later requests, such as another try to release, at their end."""
        self._is_closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        if self._is_closed and self._under_way == 0:
            idle, self._client = self._client, self._make_client()
            with anyio.CancelScope(shield=True):
                await idle.aclose()

    async def send(self, call: Call, timeout: float) -> Answer:
        """Sends the request, and sends it again where an idle connection turns out to be closed."""
        self._under_way += 1
        deadline = monotonic() + timeout
        try:
            if call.may_take_long:
                return await self._exchange(call, deadline)
            room = await self._place(timeout)
            try:
                return await self._exchange(call, deadline)
            finally:
                room.release()
        finally:
            self._under_way -= 1
            await self._close_idle()

    async def _place(self, timeout: float) -> anyio.Semaphore:
        """Waits for a place among the requests under way, which is given back by `release`."""
        if self._room is None:
            self._room = anyio.Semaphore(_MOST_AT_ONCE)
        try:
            with anyio.fail_after(timeout):
                await self._room.acquire()
        except TimeoutError as error:
            busy = TimeoutError(f"{_MOST_AT_ONCE} requests of this client are under way")
            raise unavailable(self._service.url, busy, answered=self._answered, sent=False) from error
        return self._room

    async def _exchange(self, call: Call, deadline: float) -> Answer:
        request = await self._request(call)
        while True:
            events: list[str] = []
            try:
                with anyio.fail_after(max(0.001, deadline - monotonic())):
                    got = await self._once(request, events)
                self._answered = True
                return self._service.answer(got.status_code, got.headers, got.content)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise InvalidRequest(str(error), "base_url") from error
            except TimeoutError as error:
                raise unavailable(request.url, TimeoutError("timed out"), answered=self._answered) from error
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                # Without a new connection, the request went out on an idle one, which the server had closed.
                if not events or "connection.connect_tcp.started" in events:
                    raise unavailable(request.url, error, answered=self._answered) from error
                call.was_repeated = True
            except (httpx.HTTPError, OSError) as error:  # an alert of TLS comes as it is
                sent = call.was_repeated or not isinstance(error, _NOT_SENT)
                raise unavailable(request.url, error, answered=self._answered, sent=sent) from error

    async def _request(self, call: Call) -> Request:
        if self._service.calls_out:
            # Fetching a token, or credentials, may take its time: not in the event loop.
            return await anyio.to_thread.run_sync(self._service.make, call, abandon_on_cancel=True)
        return self._service.make(call)

    async def _once(self, request: Request, events: list[str]) -> httpx.Response:
        async def trace(event: str, info: dict[str, Any]) -> None:
            events.append(event)

        return await self._client.request(
            request.method,
            request.url,
            content=request.body,
            headers=dict(request.headers),
            follow_redirects=False,
            timeout=None,
            extensions={"trace": trace},
        )


def _default_client(base_url: str, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    """A client with room for as many connections as there are heartbeats under way."""
    try:
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=(tls or ssl.create_default_context()) if base_url.startswith("https") else False,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                proxy=environment_proxy(base_url),
            ),
            trust_env=False,
        )
    except (ImportError, ValueError) as error:
        raise InvalidRequest(f"the environment's proxy cannot be used: {error}", "base_url") from error
