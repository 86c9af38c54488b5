"""The numbers of the requests under one lease id (C10 of docs/client.md): no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from .errors import LeaseholdError, Superseded, Unavailable

T = TypeVar("T")

Ending: TypeAlias = Literal["told", "untold", "may-apply"] | int
"""The end of a request: an answer told the outcome; nothing did, and the request was certainly not carried out, or
it may be; or the service carried out this higher number."""


@dataclass(frozen=True)
class Numbered(Generic[T]):
    """A request with its number. A repeat is the same object."""

    sequence: int
    request_id: str
    content: T
    sent: float
    """The time of the first sending, in the unit of whoever numbers."""

    @property
    def number(self) -> dict[str, object]:
        """The members that carry the number."""
        return {"sequence": self.sequence, "requestId": self.request_id}


class Numbers(Generic[T]):
    """Hands out the numbers. A request that may have been carried out is repeated before the next number is
    taken."""

    def __init__(self, last: int = 0) -> None:
        """`last`: the last number that was used under this lease id."""
        self._open: Numbered[T] | None = None
        self._may_arrive = False  # a copy of it: a repeat that did not arrive says nothing of the first sending
        self.last = last

    @property
    def open(self) -> Numbered[T] | None:
        """The request that may have been carried out."""
        return self._open

    def next(self, content: T, now: float, new_id: Callable[[], str]) -> Numbered[T]:
        """The request to send now: the open one, or one with this content."""
        if self._open is None:
            self.last += 1
            self._open = Numbered(self.last, new_id(), content, now)
        return self._open

    def ended(self, ending: Ending) -> None:
        """Records the end of the request."""
        self._may_arrive = self._may_arrive or ending == "may-apply"
        if not (self._may_arrive and ending in ("untold", "may-apply")):
            self._open, self._may_arrive = None, False
        if isinstance(ending, int):
            self.last = max(self.last, ending)


def ending_of(error: BaseException) -> Ending:
    """The end of a request that raised this error."""
    match error:
        case Superseded(sequence=sequence):
            return sequence
        case Unavailable(sent=sent):
            return "may-apply" if sent else "untold"
        case LeaseholdError():
            return "told"
    return "may-apply"  # the caller was cancelled
