"""One request, one answer: HTTP, JSON, and what each refusal means. Tries nothing again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NewConnectionError,
    ProxyError,
)

from ._dynamodb import Item, from_item
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
from .model import LockView

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


def default_pool() -> urllib3.PoolManager:
    """Room for as many connections as there can be heartbeats under way."""
    return urllib3.PoolManager(num_pools=2, maxsize=64)


class Transport:
    """Sends requests to one service. Safe to use from several threads."""

    def __init__(
        self,
        base_url: str,
        *,
        token: Token | None,
        headers: Mapping[str, str] | None,
        auth: Auth | None,
        make_pool: MakePool,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise InvalidRequest("must be http:// or https://, with a host and without a query", "base_url")
        self._base = base_url.rstrip("/")
        self._token = token
        self._headers = {"Accept": "application/json", "User-Agent": "leasehold-python", **(headers or {})}
        self._auth = auth
        self._make_pool = make_pool
        self._pool = make_pool()

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
            "POST", self._base + path, json.dumps(_given(body), allow_nan=False).encode(), timeout, read
        )

    def get(self, path: str, query: Mapping[str, object], timeout: float, read: Callable[[Any], T]) -> T:
        """As `post`."""
        # quote, not quote_plus: signers and the service must agree on what a space is.
        url = f"{self._base}{path}?{urlencode(_given(query), quote_via=quote, safe='')}"
        return self._send("GET", url, None, timeout, read)

    def _send(self, method: str, url: str, body: bytes | None, timeout: float, read: Callable[[Any], T]) -> T:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else self._token()
            headers["Authorization"] = f"Bearer {token}"
        if self._auth is not None:
            headers.update(self._auth(Request(method, url, headers, body)))
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(total=timeout),
                retries=False,
                redirect=False,
            )
        except LocationParseError as error:
            raise InvalidRequest(str(error), "base_url") from error
        except HTTPError as error:
            never_connected = (NewConnectionError, ConnectTimeoutError, ProxyError)
            raise Unavailable(
                f"no answer: {type(error).__name__}", sent=not isinstance(error, never_connected)
            ) from error
        return _read(answer.status, answer.headers, answer.data, read)


def _given(members: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _read(status: int, headers: Mapping[str, str], content: bytes, read: Callable[[Any], T]) -> T:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if status != 200:
        raise refusal(status, headers, document)
    try:
        return read(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A captive portal, a proxy's page: says nothing about the lock.
        raise Unavailable("an answer that is not Leasehold's") from error


def refusal(status: int, headers: Mapping[str, str], document: object) -> LeaseholdError:
    """What an answer other than 200 means: by its problem type, or else by its status."""
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
            return LockLost(problem["reason"], lock)
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
