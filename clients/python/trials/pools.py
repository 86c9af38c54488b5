"""Workers of two kinds of pools report that somebody else has the lock."""

import multiprocessing
import os
import uuid
from concurrent.futures import ProcessPoolExecutor

from leasehold import Client, LockHeld

URL = os.environ["LEASEHOLD_URL"]


def work(key: str) -> int:
    with Client(URL) as client, client.lock(key, wait=0) as guard:
        return guard.fencing_token


def main() -> None:
    key = f"pools-{uuid.uuid4()}"
    spawned = multiprocessing.get_context("spawn")
    with Client(URL, owner_name="the parent") as client, client.lock(key) as guard:
        with ProcessPoolExecutor(2, mp_context=spawned) as executor:
            free = executor.submit(work, f"{key}-free")
            error = executor.submit(work, key).exception(60)
            assert isinstance(error, LockHeld), error
            assert error.lock.owner_name == "the parent"
            assert free.result(60) > 0, "the pool goes on"
        with spawned.Pool(1) as pool:
            try:
                pool.apply_async(work, (key,)).get(60)
            except LockHeld as held:
                assert held.lock.key == key
            else:
                raise AssertionError("two held the lock")
            assert pool.apply_async(work, (f"{key}-free",)).get(60) > 0
        guard.ensure_held()
    assert work(key) > guard.fencing_token
    print("pools")


if __name__ == "__main__":
    main()
