"""The numbers of the requests under one lease id (C10 of docs/client.md): no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Numbered(Generic[T]):
    """A request with its number. A repeat is the same object."""

    sequence: int
    request_id: str
    content: T
    sent: float
    """The time of the first sending."""

    @property
    def number(self) -> dict[str, object]:
        """The members that carry the number."""
        return {"sequence": self.sequence, "requestId": self.request_id}


class Numbers(Generic[T]):
    """Hands out the numbers. A request without an answer is repeated before the next number is taken."""

    def __init__(self, new_id: Callable[[], str], last: int = 0) -> None:
        """`last`: the last number that was used under this lease id."""
        self._new_id = new_id
        self._open: Numbered[T] | None = None
        self.last = last

    @property
    def open(self) -> Numbered[T] | None:
        """The request without an answer."""
        return self._open

    def next(self, content: T, now: float) -> Numbered[T]:
        """The request to send now: the one without an answer, or one with this content."""
        if self._open is None:
            self.last += 1
            self._open = Numbered(self.last, self._new_id(), content, now)
        return self._open

    def answered(self) -> None:
        """Records that the request got an answer, whatever it says."""
        self._open = None

    def superseded(self, sequence: int) -> None:
        """Records the number that the service carried out last: the next one is above it."""
        self._open = None
        self.last = max(self.last, sequence)
