"""Functions that run under a lock, or once in each period."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold import AlreadyDone, Client, Guard, Held, InvalidRequest, LockHeld, Ran, WouldDeadlock, aio
from leasehold._world import World


class Calendar(World):
    """The wall clock stands at half past two."""

    at = 1_795_314_600_000.0  # 2026-11-22T02:30:00Z

    def epoch_ms(self) -> float:
        return self.at


def test_function_runs_under_its_lock(service: str, key: str) -> None:
    with Client(service) as client:

        @client.locked(key)
        def state(suffix: str, *, guard: Guard) -> str:
            """Tells the state."""
            assert guard.valid
            return client.get(key).state + suffix

        assert state("!") == "held!"  # type: ignore[call-arg]
        assert client.get(key).state == "released"
        assert (state.__name__, state.__doc__) == ("state", "Tells the state.")

        @client.locked(lambda number: f"{key}-{number}", reentrant=True)
        def countdown(number: int) -> int:
            return number if number == 0 else countdown(number - 1)

        assert countdown(2) == 0
        assert client.get(f"{key}-2").state == "released"

        @client.locked(key)
        def itself() -> None:
            itself()

        with pytest.raises(WouldDeadlock):
            itself()
        with Client(service) as other, other.lock(key), pytest.raises(LockHeld):
            client.locked(key, wait=0.1)(lambda: None)()
        with pytest.raises(TypeError, match="lese"):
            client.locked(key, lese=1)  # type: ignore[call-arg]


def test_function_runs_once_in_each_period(service: str, key: str) -> None:
    calendar = Calendar()
    with Client(service, world=calendar) as client, Client(service, world=calendar) as other:
        runs: list[int] = []

        def job() -> str:
            runs.append(len(runs))
            return f"run {len(runs)}"

        here, there = client.once_every(key, hours=1)(job), other.once_every(key, minutes=60)(job)
        assert here() == Ran("run 1")
        done = there()
        assert isinstance(done, AlreadyDone)
        assert done.data == b"run 1"
        calendar.at += 3_600_000
        assert there() == Ran("run 2")
        assert client.get(key).last_occurrence == "2026-11-22T03:00:00.000Z", "as the other languages write it"
        calendar.at += 3_600_000
        with other.lock(key):
            assert isinstance(here(), Held), "another one is at it"

        @client.once_every(key, hours=1)
        def fail() -> None:
            raise KeyError("the body's")

        with pytest.raises(KeyError, match="the body's"):
            fail()
        assert here() == Ran("run 3"), "a failed run may be run again"
        named = client.once_every(days=1)(job)
        assert isinstance(named(), Ran)
        assert client.get(f"{__name__}.test_function_runs_once_in_each_period.<locals>.job").state == "released"
        wrong: list[dict[str, Any]] = [{}, {"seconds": 0.5}]
        for period in wrong:
            with pytest.raises(InvalidRequest, match="period"):
                client.once_every(key, **period)


def test_coroutine_functions_have_the_same_decorators(service: str, key: str) -> None:
    async def main() -> None:
        async with aio.Client(service) as client:

            @client.locked(key)
            async def state(*, guard: Any = None) -> str:
                assert guard.valid
                return (await client.get(key)).state

            assert await state() == "held"

            @client.once_every(f"{key}-job", hours=1)
            async def job() -> str:
                return "done"

            assert await job() == Ran("done")
            assert isinstance(await job(), AlreadyDone)
            with pytest.raises(InvalidRequest, match="of the other kind"):
                client.locked(key)(test_function_runs_under_its_lock)  # type: ignore[arg-type]

    asyncio.run(main())
    with Client(service) as client, pytest.raises(InvalidRequest, match="of the other kind"):
        client.once_every(hours=1)(main)
