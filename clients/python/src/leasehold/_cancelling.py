"""The pause of a synchronous wait that another thread can cancel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ._threads import LOOK_AGAIN
from .errors import WaitCancelled

if TYPE_CHECKING:
    from ._core import Core


async def pause_until(core: Core, cancel: threading.Event | None, seconds: float) -> None:
    """Pauses a wait, until its `cancel` is set."""
    deadline = core.world.now() + seconds
    while cancel is not None:
        if cancel.is_set():
            raise WaitCancelled("the wait for the lock was cancelled")
        rest = deadline - core.world.now()
        if rest <= 0:
            break
        cancel.wait(min(rest, LOOK_AGAIN))
        await core.pause(0)
    else:
        await core.pause(seconds)
