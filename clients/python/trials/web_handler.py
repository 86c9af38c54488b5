"""A web server whose clients hang up: no lock is left, and no transaction."""

import asyncio
import os
import uuid
from contextlib import suppress

from leasehold import LockNotFound, aio


async def main() -> None:
    key = f"web-{uuid.uuid4()}"
    async with aio.Client(os.environ["LEASEHOLD_URL"], lease=60) as client:

        async def handle(request: int) -> None:
            async with client.lock(f"{key}-{request % 3}", wait=None):
                await asyncio.sleep(0.05)

        requests = [asyncio.create_task(handle(number)) for number in range(30)]
        for request in requests[::2]:
            await asyncio.sleep(0.02)
            request.cancel()
        done = await asyncio.gather(*requests, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in done), done
        assert any(result is None for result in done)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(client.acquire(f"{key}-0", wait=None), 0.001)
    # Closing has waited for all that was given back.
    async with aio.Client(os.environ["LEASEHOLD_URL"]) as observer:
        for number in range(3):
            with suppress(LockNotFound):
                assert (await observer.get(f"{key}-{number}")).state == "released"
    print("web handler")


if __name__ == "__main__":
    asyncio.run(main())
