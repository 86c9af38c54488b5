"""Behaviour that only shows between processes: death, exit, fork, and observations that outlive a process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import MakeClient, RunPython, eventually, finished
from proxy import Delay, Fault, Hang, Proxy, Seen, only

PROMPTLY = 20.0
"""Seconds in which a process must have ended; the leases of these tests are longer."""


def test_killed_holder_is_followed_after_its_lease_only(
    service: str, make_client: MakeClient, run_python: RunPython, key: str
) -> None:
    holder = run_python(
        """
        import sys, time, leasehold
        guard = leasehold.Client(sys.argv[1]).acquire(sys.argv[2], lease=4, heartbeat_interval=0.5).granted()
        print("held", guard.fencing_token, flush=True)
        time.sleep(60)
        """,
        service,
        key,
    )
    assert holder.stdout is not None
    token = int(holder.stdout.readline().split()[1])
    time.sleep(4.2)  # its heartbeats keep it
    observer, waiter = make_client(), make_client(poll_interval=60)
    waiter.try_acquire(key)
    version = observer.get(key).record_version_number
    last_heartbeat, deadline = 0.0, time.monotonic() + 60
    while not last_heartbeat:
        assert time.monotonic() < deadline, "it sends no heartbeats"
        asked = time.monotonic()
        if observer.get(key).record_version_number != version:
            last_heartbeat = asked  # or later
    os.kill(holder.pid, signal.SIGKILL)
    guard = waiter.acquire(key, wait=30).granted()
    assert 4 <= time.monotonic() - last_heartbeat < 30, "and before the next poll"
    assert guard.outcome == "takenOver"
    assert guard.fencing_token > token


@pytest.mark.parametrize("end", ["release", "forget", "close", "sys.exit", "exception"])
def test_process_ends_promptly(service: str, run_python: RunPython, key: str, end: str) -> None:
    process = run_python(
        """
        import sys, time, leasehold
        client = leasehold.Client(sys.argv[1], lease=60, heartbeat_interval=0.1)
        guard = client.acquire(sys.argv[2]).granted()
        time.sleep(0.3)
        end = sys.argv[3]
        if end == "release":
            guard.release()
        if end == "close":
            client.close()
        print("ends", flush=True)
        if end == "sys.exit":
            with guard:
                sys.exit(0)
        if end == "exception":
            with guard:
                raise SystemExit("no")
        """,
        service,
        key,
        end,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ends\n"
    start = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - start < PROMPTLY
    forgotten = f"the lock '{key}' was never released: it is released at the end of the program"
    assert errors.strip() == {"exception": "no", "forget": forgotten}.get(end, "")


def test_process_ends_promptly_while_a_heartbeat_hangs(proxy: Proxy, run_python: RunPython, key: str) -> None:
    proxy.fault = only("heartbeat", Hang())
    process = run_python(
        """
        import sys, time, leasehold
        client = leasehold.Client(sys.argv[1], lease=60, heartbeat_interval=0.1)
        guard = client.acquire(sys.argv[2]).granted()
        time.sleep(0.3)
        print("ends", flush=True)
        """,
        proxy.url,
        key,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ends\n"
    start = time.monotonic()
    finished(process)
    assert time.monotonic() - start < PROMPTLY


def test_ctrl_c_in_an_acquire_leaves_no_lock(
    proxy: Proxy, make_client: MakeClient, run_python: RunPython, key: str
) -> None:

    def fault(request: Seen) -> Fault | None:
        if request.action == "release":
            time.sleep(0.4)  # longer than an interpreter takes to end
        return Delay(30) if request.action == "acquire" else None

    proxy.fault = fault
    process = run_python(
        """
        import sys, leasehold
        leasehold.Client(sys.argv[1], lease=60).acquire(sys.argv[2])
        """,
        proxy.url,
        key,
    )
    direct = make_client()
    eventually(lambda: any(lock.key == key for lock in direct.list()))
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - start < PROMPTLY
    assert "KeyboardInterrupt" in errors
    eventually(lambda: direct.get(key).state == "released")


def test_observations_outlive_a_process(
    service: str, make_client: MakeClient, run_python: RunPython, key: str, tmp_path: Path
) -> None:
    """A job that runs for a moment, again and again."""
    make_client().acquire(key, lease=10, manual_heartbeats=True).granted()
    state = tmp_path / "observations.json"
    state.write_text("[]")
    job = """
        import json, pathlib, sys, leasehold
        state = pathlib.Path(sys.argv[3])
        with leasehold.Client(sys.argv[1], observation_margin=0.5) as client:
            client.load_observations(json.loads(state.read_text()))
            result = client.try_acquire(sys.argv[2])
            state.write_text(json.dumps(client.save_observations()))
            print(result.outcome if isinstance(result, leasehold.Guard) else "held")
        """
    assert finished(run_python(job, service, key, str(state))) == "held\n"
    (saved,) = json.loads(state.read_text())
    assert saved["key"] == key
    assert abs(saved["firstSeenEpochMs"] / 1000 - time.time()) < 20
    time.sleep(max(0.0, saved["firstSeenEpochMs"] / 1000 + 10.6 - time.time()))
    assert finished(run_python(job, service, key, str(state))) == "takenOver\n"
    assert json.loads(state.read_text()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_child_of_a_fork_leaves_the_parents_locks_alone(
    service: str, make_client: MakeClient, run_python: RunPython, key: str
) -> None:
    process = run_python(
        """
        import os, sys, threading, time, leasehold
        url, key = sys.argv[1:]
        client = leasehold.Client(url)
        observed = client.try_acquire(key + "-other")
        outcome = 1
        try:
            with client.lock(key, lease=4, heartbeat_interval=0.4) as guard:
                child = os.fork()
                if child == 0:
                    outcome = 2
                    assert guard.lost == "forked", guard.lost
                    assert not guard.valid
                    assert guard.wait_lost(0) == "forked"
                    for forbidden in (guard.ensure_held, guard.renew, guard.release):
                        try:
                            forbidden()
                        except leasehold.LockLost as error:
                            assert error.reason == "forked"
                        else:
                            raise AssertionError(forbidden)
                    assert threading.active_count() == 1
                    held = client.try_acquire(key)
                    assert isinstance(held, leasehold.Held), held
                    assert held.lock.owner_name == guard.owner_name
                    with client.lock(key + "-child", lease=4, heartbeat_interval=0.4) as mine:
                        assert str(os.getpid()) in mine.owner_name
                        time.sleep(4.2)
                        mine.ensure_held()
                    client.close()
                    outcome = 3
                    # and falls out of the parent's block
                else:
                    _, status = os.waitpid(child, 0)
                    assert os.waitstatus_to_exitcode(status) == 0, status
                    guard.ensure_held()
                    assert client.get(key).state == "held"
                    outcome = 4
        except leasehold.LockLost as error:
            assert outcome == 3 and error.reason == "forked"
            os._exit(0)
        except BaseException:
            if outcome in (2, 3):
                import traceback
                traceback.print_exc()
                os._exit(1)
            raise
        assert outcome == 4
        print(client.get(key).state)
        """,
        service,
        key,
    )
    assert finished(process) == "released\n"


def test_one_of_many_processes_holds_the_lock(service: str, run_python: RunPython, key: str, tmp_path: Path) -> None:
    """A counter in a file, read and written without any care but the lock."""
    counter, tokens = tmp_path / "counter", tmp_path / "tokens"
    counter.write_text("0")
    tokens.write_text("")
    work = """
        import pathlib, sys, threading, time, leasehold
        url, key, counter, tokens = sys.argv[1:]
        counter, tokens = pathlib.Path(counter), pathlib.Path(tokens)

        def work(client):
            done = 0
            while done < 10:
                result = client.try_acquire(key)
                if isinstance(result, leasehold.Held):
                    time.sleep(0.005)
                    continue
                with result as guard:
                    number = int(counter.read_text())
                    with tokens.open("a") as file:
                        file.write(f"{guard.fencing_token}\\n")
                    time.sleep(0.001)
                    counter.write_text(str(number + 1))
                    done += 1

        with leasehold.Client(url, lease=20) as client:
            threads = [threading.Thread(target=work, args=[client]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        """
    processes = [run_python(work, service, key, str(counter), str(tokens)) for _ in range(2)]
    for process in processes:
        finished(process, timeout=60)
    assert counter.read_text() == "80"
    granted = [int(line) for line in tokens.read_text().split()]
    assert len(granted) == 80
    assert granted == sorted(set(granted))
