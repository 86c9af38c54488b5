"""The asynchronous client, for `asyncio` and `trio`. Needs the extra `leasehold[aio]`.

    async with Client("http://127.0.0.1:8080") as client:
        async with client.lock("nightly-export") as guard:
            await export(fencing_token=guard.fencing_token)

It follows the rules of `leasehold.Client`, and shares its errors and values. Cancelling is always safe: no
lock is left behind that nobody holds.
"""

try:
    import anyio  # noqa: F401
    import httpx  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "leasehold.aio needs httpx and anyio: pip install 'leasehold[aio]'", name=error.name
    ) from error

from ._http import MakeClient
from .client import Client
from .election import Election
from .guard import AllGuard, Guard, PermitGuard
from .semaphore import ReadWriteLock, Semaphore
from .transactions import Transaction

__all__ = [
    "AllGuard",
    "Client",
    "Election",
    "Guard",
    "MakeClient",
    "PermitGuard",
    "ReadWriteLock",
    "Semaphore",
    "Transaction",
]
