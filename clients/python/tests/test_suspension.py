"""A process that was suspended with its machine, so that its monotonic clock stood still."""

from __future__ import annotations

import asyncio

import pytest
from conftest import broken, eventually

from leasehold import Client, Guard, Unavailable, aio
from leasehold._world import World


class Laptop(World):
    """A machine whose lid is closed for a while."""

    slept = 0.0

    def epoch_ms(self) -> float:
        return super().epoch_ms() + self.slept * 1000


def test_guard_believes_in_nothing_until_a_heartbeat(service: str, key: str) -> None:
    laptop = Laptop()
    with Client(service, world=laptop, lease=60) as client:
        guard = client.acquire(key, manual_heartbeats=True)
        assert isinstance(guard, Guard)
        laptop.slept += 0.05
        assert guard.valid, "clocks of a machine that runs differ by less"
        laptop.slept += 3
        assert (guard.valid, guard.remaining(), guard.lost) == (False, 0.0, None)
        with pytest.raises(Unavailable, match="suspended"):
            guard.ensure_held()
        guard.renew()
        assert guard.valid
        guard.ensure_held()
        guard.release()


def test_heartbeat_follows_a_suspension_at_once(service: str, key: str) -> None:
    laptop = Laptop()
    with Client(service, world=laptop, lease=600) as client:
        guard = client.acquire(key).granted()
        version = guard.record_version_number
        laptop.slept += 3
        assert not guard.valid
        eventually(lambda: guard.valid)
        assert guard.record_version_number != version


def test_lock_that_went_in_a_suspension_is_lost_at_once(service: str, key: str) -> None:
    laptop = Laptop()
    with Client(service, world=laptop, lease=600) as client, Client(service) as other:
        guard = client.acquire(key).granted()
        broken(other, key)
        laptop.slept += 3600
        assert not guard.valid
        assert guard.wait_lost(60) == "released"


def test_guard_of_a_task_is_in_doubt_after_a_suspension_too(service: str, key: str) -> None:
    async def main() -> None:
        laptop = Laptop()
        async with aio.Client(service, world=laptop, lease=600) as client:
            guard = (await client.acquire(key)).granted()
            laptop.slept += 3
            assert not guard.valid
            with pytest.raises(Unavailable, match="suspended"):
                guard.ensure_held()
            for _ in range(3000):
                if guard.valid:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("no heartbeat was answered")

    asyncio.run(main())
