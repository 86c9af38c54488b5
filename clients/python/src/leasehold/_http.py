"""The transport of the synchronous client: HTTP with urllib3."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import unquote

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    LocationValueError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ProxySchemeUnknown,
    SSLError,
)

from ._messages import Answer, Call, Service, unavailable
from ._proxies import environment_proxy
from .errors import InvalidRequest

MakePool: TypeAlias = Callable[[], urllib3.PoolManager]
"""Makes the connection pool: for a private CA or a client certificate. Called again after a fork."""


class HttpTransport:
    """Sends requests to one service. Safe to use from several threads."""

    def __init__(self, service: Service, make_pool: MakePool | None, tls: ssl.SSLContext | None = None) -> None:
        self._service = service
        self._make_pool = make_pool or partial(_default_pool, service.url, tls)
        self._pool = self._make_pool()
        self._answered = False

    def reset(self) -> None:
        self._pool = self._make_pool()

    async def close(self) -> None:
        self._pool.clear()

    async def send(self, call: Call, timeout: float) -> Answer:
        """Sends the request, and sends it again if an idle connection turns out to be closed."""
        request = self._service.make(call)
        deadline = monotonic() + timeout
        while True:
            connections = self._connections(request.url)
            try:
                got = self._pool.request(
                    request.method,
                    request.url,
                    body=request.body,
                    headers=request.headers,
                    timeout=urllib3.Timeout(total=max(0.001, deadline - monotonic())),
                    retries=False,
                    redirect=False,
                )
                self._answered = True
                return self._service.answer(got.status, got.headers, got.data)
            except (LocationParseError, LocationValueError) as error:
                raise InvalidRequest(str(error), "base_url") from error
            except ProtocolError as error:
                # Without a new connection, the request went out on an idle one, which the server had closed.
                if monotonic() >= deadline or self._connections(request.url) != connections:
                    raise unavailable(request.url, error, answered=self._answered) from error
                call.was_repeated = True
            except HTTPError as error:
                # The first sending may have been carried out, although there is nobody for the second.
                sent = call.was_repeated or not _never_connected(error)
                raise unavailable(request.url, error, answered=self._answered, sent=sent) from error
            except OSError as error:
                raise unavailable(request.url, error, answered=self._answered) from error

    def _connections(self, url: str) -> int:
        """The number of connections made to the service so far."""
        pool: urllib3.HTTPConnectionPool = self._pool.connection_from_url(url)
        return pool.num_connections


def _never_connected(error: HTTPError) -> bool:
    """Whether the request was certainly not sent. A handshake comes before it."""
    if isinstance(error, SSLError):
        return any(reason in str(error) for reason in ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER"))
    return isinstance(error, (NewConnectionError, ConnectTimeoutError, ProxyError))


def _default_pool(base_url: str, tls: ssl.SSLContext | None) -> urllib3.PoolManager:
    """A pool with room for as many connections as there can be heartbeats under way."""
    room: dict[str, Any] = {"num_pools": 2, "maxsize": 64, "ssl_context": tls}
    proxy = environment_proxy(base_url)
    if proxy is None:
        return urllib3.PoolManager(**room)
    credentials = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=unquote(credentials)) if credentials else None
    try:
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **room)
    except (ProxySchemeUnknown, LocationParseError) as error:
        raise InvalidRequest(f"the environment's proxy cannot be used: {error}", "base_url") from error
