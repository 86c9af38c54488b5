"""One request, one answer: HTTP, JSON, and what each refusal means. Tries nothing again."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ProxySchemeUnknown,
)

from ._about import __version__
from ._dynamodb import from_item
from .errors import (
    ConditionFailed,
    CorruptRecord,
    Forbidden,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    Throttled,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
    VersionMismatch,
)
from .model import Item, LockView

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What an `auth` callable sees of a request. Its body may hold a lease id: log it nowhere."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = field(repr=False)


Token: TypeAlias = str | Callable[[], str]
"""A bearer token, or what fetches one; asked for each request, so that it can be renewed."""

Auth: TypeAlias = Callable[[Request], Mapping[str, str]]
"""Signs a request: returns the headers to add to it."""

MakePool: TypeAlias = Callable[[], urllib3.PoolManager]
"""Makes the connection pool: for a private CA, a client certificate or a proxy. Called again after a fork."""


def default_pool(base_url: str) -> urllib3.PoolManager:
    """A pool with room for as many connections as there can be heartbeats under way, through the proxy that
    the environment names for this URL."""
    room: dict[str, Any] = {"num_pools": 2, "maxsize": 64}
    proxy = environment_proxy(base_url)
    if proxy is None:
        return urllib3.PoolManager(**room)
    credentials = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=unquote(credentials)) if credentials else None
    try:
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **room)
    except (ProxySchemeUnknown, LocationParseError) as error:
        raise InvalidRequest(
            f"the environment names a proxy that cannot be used: {error}", "base_url"
        ) from error


def environment_proxy(base_url: str) -> str | None:
    """The proxy that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, or the system's settings, name
    for this URL. Never one for this machine itself."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Transport:
    """Sends requests to one service. Safe to use from several threads."""

    def __init__(
        self,
        base_url: str,
        *,
        token: Token | None,
        headers: Mapping[str, str] | None,
        auth: Auth | None,
        make_pool: MakePool | None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise InvalidRequest("must be http:// or https://, with a host and without a query", "base_url")
        self._base = base_url.rstrip("/")
        self._token = token
        self._headers = {
            "Accept": "application/json",
            "User-Agent": f"leasehold-python/{__version__}",
            **(headers or {}),
        }
        self._auth = auth
        self._make_pool = make_pool or partial(default_pool, base_url)
        self._pool = self._make_pool()

    def reset(self) -> None:
        """For the child of a fork: its parent goes on using the old connections."""
        self._pool = self._make_pool()

    def close(self) -> None:
        """Closes idle connections. A later request opens new ones."""
        self._pool.clear()

    def post(self, path: str, body: Mapping[str, Any], timeout: float, read: Callable[[Any], T]) -> T:
        """`read` makes something of the answer; whatever it cannot read is no answer of the service.
        Members that are `None` are left out."""
        return self._send(
            "POST", self._base + path, json.dumps(_given(body), allow_nan=False).encode(), timeout, body, read
        )

    def get(self, path: str, query: Mapping[str, object], timeout: float, read: Callable[[Any], T]) -> T:
        """As `post`."""
        # quote, not quote_plus: signers and the service must agree on what a space is.
        url = f"{self._base}{path}?{urlencode(_given(query), quote_via=quote, safe='')}"
        return self._send("GET", url, None, timeout, query, read)

    def _send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        timeout: float,
        asked: Mapping[str, object],
        read: Callable[[Any], T],
    ) -> T:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else self._token()
            headers["Authorization"] = f"Bearer {token}"
        if self._auth is not None:
            headers.update(self._auth(Request(method, url, headers, body)))
        answer = self._answer(Request(method, url, headers, body), monotonic() + timeout)
        return _read(answer.status, answer.headers, answer.data, asked, read)

    def _answer(self, request: Request, deadline: float) -> urllib3.BaseHTTPResponse:
        """Sends the request, and sends it again where an idle connection turns out to be closed."""
        while True:
            connections = self._connections(request.url)
            try:
                return self._pool.request(
                    request.method,
                    request.url,
                    body=request.body,
                    headers=request.headers,
                    timeout=urllib3.Timeout(total=max(0.001, deadline - monotonic())),
                    retries=False,
                    redirect=False,
                )
            except LocationParseError as error:
                raise InvalidRequest(str(error), "base_url") from error
            except ProtocolError as error:
                # Without a new connection, the request went out on an idle one, which the server had closed.
                if monotonic() >= deadline or self._connections(request.url) != connections:
                    raise unavailable(request.url, error) from error
            except HTTPError as error:
                never_connected = (NewConnectionError, ConnectTimeoutError, ProxyError)
                raise unavailable(request.url, error, sent=not isinstance(error, never_connected)) from error

    def _connections(self, url: str) -> int:
        """The number of connections made to the service so far."""
        pool: urllib3.HTTPConnectionPool = self._pool.connection_from_url(url)
        return pool.num_connections


def unavailable(url: str, error: Exception, *, sent: bool = True) -> Unavailable:
    """The error for a request without an answer: names the URL, without its query, and the reason."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Unavailable(f"no answer from {place}: {_reason(error)}", sent=sent)


def _reason(error: BaseException) -> str:
    """The innermost error, in words: that is where the system says why."""
    while True:
        inner = error.__cause__ or error.__context__
        inner = next((arg for arg in error.args if isinstance(arg, BaseException)), inner)
        if inner is None:
            return re.sub(r"^<?\w*(Connection|Pool)\w*\(.*?\)>?: ", "", str(error)) or type(error).__name__
        error = inner


def _given(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _read(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    asked: Mapping[str, object],
    read: Callable[[Any], T],
) -> T:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if status != 200:
        raise refusal(status, headers, document, asked)
    try:
        return read(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A captive portal, a proxy's page: says nothing about the lock.
        raise Unavailable("an answer that is not Leasehold's") from error


def refusal(
    status: int, headers: Mapping[str, str], document: object, asked: Mapping[str, Any]
) -> LeaseholdError:
    """The error of an answer other than 200: by its problem type, or else by its status. `asked` has the
    members of the request."""
    problem = document if isinstance(document, dict) else {}
    kind = problem.get("type")
    detail = problem.get("detail")
    message = detail if isinstance(detail, str) else f"the service answered with status {status}"
    retry_after = _seconds(headers.get("Retry-After"))
    try:
        lock = LockView.from_wire(problem["lock"]) if problem.get("lock") else None
    except (AttributeError, KeyError, TypeError, ValueError):
        lock = None
    match kind:
        case "held" if lock is not None:
            return LockHeld(lock, retry_after)
        case "lost" if problem.get("reason") in ("absent", "released", "taken-over", "version-mismatch"):
            return LockLost(problem["reason"], lock, key=asked.get("key", ""), sort_key=asked.get("sortKey"))
        case "not-found":
            return LockNotFound(message)
        case "version-mismatch":
            return VersionMismatch(message, lock)
        case "forbidden":
            return Forbidden(message)
        case "corrupt-record":
            return CorruptRecord(message)
        case "contended":
            return TransactionContended(message, problem.get("transactionId"), retry_after)
        case "rolled-back":
            return TransactionRolledBack(message, retry_after)
        case "committed":
            return TransactionCommitted(message)
        case "transaction-not-found":
            return TransactionNotFound(message)
        case "condition-failed":
            return ConditionFailed(message, problem.get("request"), _item(problem))
        case "throttled":
            return Throttled(message, retry_after)
        case "unavailable":
            return Unavailable(message, retry_after)
    if status in (401, 403):
        return Forbidden(message)
    if status == 429:
        return Throttled(message, retry_after)
    # A "held" or "lost" that cannot be read is an answer of the service all the same, and says too little.
    if status >= 500 or status == 408 or kind in ("held", "lost") or status < 300:
        return Unavailable(message, retry_after)
    name = problem.get("field")
    return InvalidRequest(message, name if isinstance(name, str) else None)


def _item(problem: Mapping[str, Any]) -> Item | None:
    try:
        return from_item(problem["item"]) if problem.get("item") else None
    except (AttributeError, TypeError, ValueError):
        return None


def _seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 0)
    except ValueError:  # a date: compares two machines' clocks, so it is not followed
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
