"""The guards of the running flow: of a thread, or of a task and the tasks that it has started since."""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import Core

_taken: ContextVar[tuple[weakref.ref[Any], ...]] = ContextVar("leasehold_taken", default=())


def note(guard: Any) -> None:
    """Records that the running flow has this guard."""
    kept = tuple(known for known in _taken.get() if (other := known()) is not None and other.valid)
    _taken.set((*kept, weakref.ref(guard)))


def held_here(core: Core) -> list[Any]:
    """The guards of this client that the running flow has, and that are held, the last one first."""
    guards = [guard for known in reversed(_taken.get()) if (guard := known()) is not None]
    return [guard for guard in guards if guard._core is core and guard.valid]
