"""The endpoints of one service, of which one is current. Where it gives no answer of the service's, the next one is
asked (C11 of docs/client.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TypeAlias

from ._messages import Answer, Auth, Call, Service, Token, Transport, refusal, service_of
from ._timing import endpoint_timeout, retry_after
from .errors import InvalidRequest, Unavailable

Place: TypeAlias = "str | Service | Sequence[str | Service]"
"""The URL of a service, or a service that knows how it is called; or several, for the same table."""


def transport_of(
    place: Place,
    token: Token | None,
    headers: Mapping[str, str] | None,
    auth: Auth | None,
    make: Callable[[Service], Transport],
) -> Transport:
    """The transport to the service at this place. `make` makes that of one endpoint."""
    services = [service_of(one, token, headers, auth) for one in _places(place)]
    transports = [make(service) for service in services]
    return transports[0] if len(transports) == 1 else Endpoints([service.url for service in services], transports)


def _places(place: Place) -> Sequence[str | Service]:
    if isinstance(place, str) and "," in place:
        # A variable of the environment has the URLs with commas between them.
        place = [url.strip() for url in place.split(",") if url.strip()]
    if isinstance(place, (str, bytes)) or not isinstance(place, Sequence):
        return [place]
    if not place:
        raise InvalidRequest("must name an endpoint", "base_url")
    return place


class Endpoints:
    """The transport to several endpoints.

    A request that certainly was not sent goes to the next endpoint at once. One that may have been carried out is left
    to the caller, whose next try, under the same lease id and number, goes to the next endpoint.
    """

    def __init__(self, urls: Sequence[str], transports: Sequence[Transport]) -> None:
        self._urls, self._transports = urls, transports
        self._current = 0
        self._failures: dict[int, str] = {}  # since the last answer

    def reset(self) -> None:
        for transport in self._transports:
            transport.reset()

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()

    async def send(self, call: Call, timeout: float) -> Answer:
        """Sends the request to the current endpoint, and to the next ones where it was not sent."""
        count, first, end = len(self._transports), self._current, monotonic() + timeout
        failure, cause = Unavailable("there is no endpoint", sent=False), None
        for at in [*range(first, count), *range(first)]:
            try:
                answer: Answer = await self._transports[at].send(call, endpoint_timeout(timeout, count))
                trouble = self._trouble(at, call, answer)
            except Unavailable as error:
                self._leave(at, str(error))
                failure, cause = Unavailable("; ".join(self._told()), sent=error.sent), error
                if error.sent or monotonic() >= end:
                    break
                continue
            if trouble is None:
                self._failures = {}
            else:
                self._leave(at, trouble)
            return answer
        failure._is_answer = False
        raise failure from cause

    def _told(self) -> list[str]:
        """What was wrong with each endpoint since the last answer."""
        return [reason for _, reason in sorted(self._failures.items())]

    def _leave(self, at: int, reason: str) -> None:
        """Makes the next endpoint the current one, unless another request has done so."""
        self._failures = self._failures | {at: reason}
        if self._current == at:
            self._current = (at + 1) % len(self._transports)

    def _trouble(self, at: int, call: Call, answer: Answer) -> str | None:
        """What is wrong with an endpoint where the next try goes to the next one after a pause: the service is there,
        and cannot reach its table; or a gateway says when to return. Raises `Unavailable` for the answer of another
        program that does not."""
        status, document = answer.status, answer.document
        problem = document if isinstance(document, dict) else {}
        text = f"no answer from {self._urls[at]}: {refusal(call, answer)}"
        if problem.get("status") == status and "type" in problem:
            return text if problem.get("type") == "unavailable" else None
        is_result = status == 200 and isinstance(document, dict)
        if is_result or (400 <= status < 500 and status != 408):
            return None
        if status >= 400 and retry_after(answer.headers.get("Retry-After")) > 0:
            return text
        raise Unavailable(text)
