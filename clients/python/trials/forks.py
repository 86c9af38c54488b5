"""A forked worker uses its parent's client, and leaves its parent's locks alone."""

import os
import time
import uuid
import warnings

from leasehold import Client, Held

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def main() -> None:
    key = f"forks-{uuid.uuid4()}"
    client = Client(os.environ["LEASEHOLD_URL"], lease=2)
    guard = client.acquire(key).granted()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert guard.lost == "forked"
            assert isinstance(client.try_acquire(key), Held), "it is the parent's"
            with client.lock(f"{key}-child", lease=1) as own:
                time.sleep(1.5)
                own.ensure_held()  # a child has heartbeats of its own
            client.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(1)
    guard.ensure_held()
    guard.release()
    client.close()
    print("forks")


if __name__ == "__main__":
    main()
