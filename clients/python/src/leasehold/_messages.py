"""The calls of the service as messages, and the meaning of each answer. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from ._about import __version__
from ._dynamodb import from_item
from ._timing import retry_after
from .errors import (
    ConditionFailed,
    CorruptRecord,
    ExceedsCapacity,
    Forbidden,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    Misconfigured,
    OccurrenceDone,
    PermitsMismatch,
    QueueFull,
    Superseded,
    Throttled,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
    VersionMismatch,
    WrongKind,
)
from .model import Item, LockView

T = TypeVar("T")


class Call:
    """One call of the service. Members of `None` are left out."""

    def __init__(self, method: str, path: str, members: Mapping[str, object]) -> None:
        self.method = method
        self.path = path
        self.headers: Mapping[str, str] = {}
        """Additional headers, which are not signed: the trace context."""
        self.was_repeated = False
        """Whether the transport sent it again on another connection: it may have been carried out before."""
        self.members = {name: value for name, value in members.items() if value is not None}

    @property
    def may_take_long(self) -> bool:
        """Whether the service may keep it waiting: for a change, or for other transactions."""
        return self.path == "/v1/watch" or self.path.startswith("/v1/transactions/")


@dataclass(frozen=True)
class Answer:
    """The answer to a call. `document` is `None` if the answer is not JSON."""

    status: int
    headers: Mapping[str, str]
    document: object


class Transport(Protocol):
    """Carries calls to one service, without retries. Raises `Unavailable` if no answer came."""

    async def send(self, call: Call, timeout: float) -> Answer:
        """Sends one request; `timeout` is in seconds."""
        ...

    def reset(self) -> None:
        """Opens new connections in the child of a fork: the parent uses the old ones."""
        ...

    async def close(self) -> None:
        """Closes idle connections."""
        ...


def service_of(
    place: str | Service, token: Token | None, headers: Mapping[str, str] | None, auth: Auth | None
) -> Service:
    """The service at this place: a URL, or a service that knows how it is called."""
    if isinstance(place, str):
        return HttpApi(place, token=token, headers=headers, auth=auth)
    if token is not None or headers is not None or auth is not None:
        raise InvalidRequest("token, headers and auth are for a URL", "base_url")
    if not hasattr(place, "make"):
        raise InvalidRequest(f"must be a URL, or a leasehold.aws.Function, not {place!r}", "base_url")
    return place


@dataclass(frozen=True)
class Request:
    """An HTTP request, as an `auth` callable sees it. Its body may contain a lease id: never log it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = field(repr=False)


Token: TypeAlias = str | Callable[[], str]
"""A bearer token, or a callable that returns one for each request, so that tokens can be renewed."""

Auth: TypeAlias = Callable[[Request], Mapping[str, str]]
"""Signs a request: returns the headers to add to it."""


class Service(Protocol):
    """The address and the calls of a service over HTTP."""

    @property
    def url(self) -> str:
        """The service's URL, for the choice of a proxy."""
        ...

    @property
    def calls_out(self) -> bool:
        """Whether making a request runs code of the caller's, which may take a while."""
        ...

    def make(self, call: Call) -> Request:
        """Makes the signed request of a call."""
        ...

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        """Makes the answer of an HTTP response."""
        ...


class HttpApi:
    """The service's HTTP API."""

    def __init__(
        self, base_url: str, *, token: Token | None, headers: Mapping[str, str] | None, auth: Auth | None
    ) -> None:
        self.url = _checked_url(base_url)
        self._token = token
        self._headers = {
            "Accept": "application/json",
            "User-Agent": f"leasehold-python/{__version__}",
            **(headers or {}),
        }
        self._auth = auth

    @property
    def calls_out(self) -> bool:
        return self._auth is not None or callable(self._token)

    def make(self, call: Call) -> Request:
        headers = dict(self._headers)
        url, body = self.url + call.path, None
        if call.method == "POST":
            body = content_of(call.members)
            headers["Content-Type"] = "application/json"
        elif call.members:
            url += "?" + _query(call.members)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {_one_line(self._token)}"
        if self._auth is not None:
            headers.update(self._auth(Request(call.method, url, headers, body)))
        headers.update(call.headers)
        for name, value in headers.items():
            _check_header(name, value)
        return Request(call.method, url, headers, body)

    def answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        return Answer(status, headers, parsed(content))


def _checked_url(base_url: str) -> str:
    """The URL without its last slash. Raises `InvalidRequest` for one that no request can be sent to."""
    # Some messages below show the URL.
    if "@" in base_url:
        raise InvalidRequest("must have no user, no password and no @: use token, headers or auth", "base_url")
    try:
        parts = urlsplit(base_url)
        host = (parts.hostname or "").rstrip(".")
        host.encode("ascii" if ":" in host else "idna")
        parts.port  # noqa: B018 - raises for a number that is none
    except ValueError as error:  # of Unicode too
        raise InvalidRequest(f"{base_url!r} is no URL: {error}", "base_url") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InvalidRequest("must be http:// or https://, with a host and without a query", "base_url")
    if any(character.isspace() for character in parts.netloc):
        raise InvalidRequest(f"{base_url!r} is no URL: its host has a space", "base_url")
    return base_url.rstrip("/")


def _one_line(token: Token) -> str:
    """The token, which no error message repeats."""
    text = token() if callable(token) else token
    if not isinstance(text, str) or not text:
        raise InvalidRequest("must be a text that is not empty", "token")
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest("is not one line of printable ASCII: strip() what was read from a file", "token")
    return text


def _check_header(name: object, value: object) -> None:
    """Refuses a header that HTTP has no place for. No message shows its value, which may be a secret."""
    for text in (name, value):
        if not isinstance(text, str) or "\n" in text or "\r" in text or "\0" in text:
            raise InvalidRequest(f"the header {name!r} is not one line of text", "headers")


def content_of(members: Mapping[str, object]) -> bytes:
    """The members as JSON. Raises `InvalidRequest` for what JSON does not have."""
    return b"{%s}" % b",".join(json_of(name) + b":" + json_of(value, name) for name, value in members.items())


def json_of(value: object, field: str | None = None, *, canonical: bool = False) -> bytes:
    """The JSON of a value of the caller's, without escapes; `canonical`: one JSON for dictionaries that are equal.
    Raises `InvalidRequest` for what JSON does not have: `NaN`, half of a surrogate pair, an object."""
    try:
        return json.dumps(
            value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=canonical
        ).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"is not Unicode: {error.object[error.start : error.end]!r}", field) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field) from error


def _query(members: Mapping[str, object]) -> str:
    for name in ("key", "sortKey"):
        if not isinstance(members.get(name, ""), str):
            raise InvalidRequest(f"must be a text, not {members[name]!r}", "sort_key" if name == "sortKey" else name)
    try:
        # quote, not quote_plus: signers and the service must agree on what a space is.
        return urlencode(members, quote_via=quote, safe="")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"is not UTF-8: {error.reason}", "key") from error


def parsed(content: bytes | str) -> object:
    """The document of an answer; `None` if it is not JSON."""
    try:
        document: object = json.loads(content)
    except ValueError:
        return None
    return document


def unavailable(url: str, error: BaseException, *, answered: bool = False, sent: bool = True) -> Unavailable:
    """The error of a request without an answer. It names the URL, without its query, and the reason; and the advice for
    a URL that may be wrong, unless an answer came from there before (`answered`)."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    reason = _reason(error)
    advice = "" if answered else _advice(parts, reason, sent)
    failure = Unavailable(f"no answer from {place}: {reason}{advice}", sent=sent)
    failure._is_answer = False
    return failure


def _advice(parts: SplitResult, reason: str, sent: bool) -> str:
    """Says what the caller may do about the failure of a request."""
    if any(text in reason for text in ("Name or service", "nodename", "getaddrinfo", "name resolution")):
        return f": there is no host {parts.hostname}, so check the URL"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return ": a private authority is named by ca_file"
    if "WRONG_VERSION_NUMBER" in reason:
        return ": check the URL: the port seems to speak no TLS, which needs http:// in the URL"
    if sent and parts.scheme == "http" and not reason.startswith("timed out") and "timed out" not in reason:
        return ": a port that speaks TLS needs https:// in the URL"
    return "" if sent else ": check the URL, and that the service runs"


def _reason(error: BaseException) -> str:
    """The text of the innermost error, which comes from the system."""
    while True:
        inner = error.__cause__ or error.__context__
        inner = next((arg for arg in error.args if isinstance(arg, BaseException)), inner)
        if inner is None:
            return str(error) or type(error).__name__
        error = inner


def read(call: Call, answer: Answer, make: Callable[[Any], T]) -> T:
    """Returns the result of a call, made of its answer's document. Raises the error that the answer stands
    for."""
    if answer.status != 200:
        raise refusal(call, answer)
    try:
        return make(answer.document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The answer is a captive portal's or a proxy's page, and says nothing about the lock.
        raise Unavailable(f"{call.path}: the answer is not Leasehold's") from error


def refusal(call: Call, answer: Answer) -> LeaseholdError:
    """The error of an answer other than 200, by its problem type, or else by its status."""
    problem = answer.document if isinstance(answer.document, dict) else {}
    asked = retry_after(answer.headers.get("Retry-After"))
    detail = problem.get("detail")
    said = f": {problem['message']}" if isinstance(problem.get("message"), str) else ""  # by a gateway
    message = detail if isinstance(detail, str) else f"the answer is status {answer.status}, not Leasehold's own{said}"
    if answer.status == 404 and problem.get("type") in (None, "unknown-route"):
        message = f"there is no such route: check the path of the URL ({message})"
    # A document with another status was made for another answer.
    if problem.get("status") == answer.status:
        error = _problem(call, problem, message, asked)
        if error is not None:
            return error
    return _by_status(answer.status, problem, message, asked)


def _problem(call: Call, problem: Mapping[str, Any], message: str, asked: float) -> LeaseholdError | None:
    lock = _lock(problem)
    match problem.get("type"):
        case "held":
            locks = _locks(problem) if lock is None else (lock,)
            return LockHeld(locks[0], asked, locks) if locks else Unavailable(message, asked)
        case "lost":
            which: Mapping[str, Any] = next(iter(problem.get("locks") or ()), call.members)
            reason: Any = problem.get("reason") or which.get("reason") or "taken-over"
            if reason not in ("absent", "released", "taken-over", "version-mismatch", "queued", "not-queued"):
                return Unavailable(message, asked)
            key, sort_key = which.get("key"), which.get("sortKey")
            return LockLost(reason, lock, key=str(key), sort_key=None if sort_key is None else str(sort_key))
        case "superseded":
            sequence, token = problem.get("sequence"), problem.get("fencingToken")
            if not isinstance(sequence, int):
                return Unavailable(message, asked)
            return Superseded(message, sequence, token if isinstance(token, int) else None)
        case "not-found":
            return LockNotFound(message)
        case "version-mismatch":
            return VersionMismatch(message, lock)
        case "already-done":
            return OccurrenceDone(message, lock)
        case "wrong-kind":
            return WrongKind(message)
        case "permits-mismatch":
            return PermitsMismatch(message)
        case "exceeds-capacity":
            return ExceedsCapacity(message)
        case "queue-full":
            return QueueFull(message, lock, asked)
        case "forbidden":
            return Forbidden(message)
        case "misconfigured":
            return Misconfigured(message)
        case "corrupt-record":
            return CorruptRecord(message)
        case "contended":
            return TransactionContended(message, problem.get("publicId"), asked)
        case "rolled-back":
            return TransactionRolledBack(message, asked)
        case "committed":
            return TransactionCommitted(message)
        case "transaction-not-found":
            return TransactionNotFound(message)
        case "condition-failed":
            return ConditionFailed(message, problem.get("request"), _item(problem))
        case "throttled":
            return Throttled(message, asked)
        case "unavailable":
            return Unavailable(message, asked)
    return None


def _by_status(status: int, problem: Mapping[str, Any], message: str, asked: float) -> LeaseholdError:
    if status in (401, 403):
        return Forbidden(message)
    if status == 429:
        return Throttled(message, asked, sent=False)  # the gateway's: certainly not carried out
    if status >= 500 or status == 408 or status < 300:
        return Unavailable(message, asked)
    name = problem.get("field")
    return InvalidRequest(message, name if isinstance(name, str) else None)


def _lock(problem: Mapping[str, Any]) -> LockView | None:
    try:
        return LockView.from_wire(problem["lock"]) if problem.get("lock") else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _locks(problem: Mapping[str, Any]) -> tuple[LockView, ...]:
    """Several locks that were refused."""
    try:
        return tuple(LockView.from_wire(lock) for lock in problem.get("locks") or ())
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def _item(problem: Mapping[str, Any]) -> Item | None:
    try:
        return from_item(problem["item"]) if problem.get("item") else None
    except (AttributeError, TypeError, ValueError):
        return None
