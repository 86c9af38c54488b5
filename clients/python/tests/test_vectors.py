"""The cases of clients/vectors, which the suites of all clients read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from conftest import PACKAGE, eventually, keeper_threads
from test_observations import Clocks

from leasehold import (
    Client,
    CorruptRecord,
    Forbidden,
    Guard,
    Handover,
    Holder,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    LockView,
    Misconfigured,
    Observation,
    SemaphoreView,
    Superseded,
    Throttled,
    Ticket,
    Unavailable,
    VersionMismatch,
)
from leasehold._acquisition import Acquisition, Held
from leasehold._api import HeartbeatContent
from leasehold._guard import Granted, Holding
from leasehold._holder import HolderTerms, Renew, SendBeat
from leasehold._messages import Answer, Call, HttpApi, read
from leasehold._plan import Look, plan
from leasehold._runtime import run
from leasehold._timing import (
    Backoff,
    Budget,
    endpoint_timeout,
    heartbeat_pause_ms,
    heartbeat_retry_pause_ms,
    mark_pause,
    poll_pause,
    request_timeout,
    retry_after,
    return_pause,
    wait_timeout,
    was_suspended_ms,
)
from leasehold.model import Renewal
from leasehold.observations import Entries, Observations

VECTORS = PACKAGE.parent / "vectors"
FILES = (
    "observations.json",
    "problems.json",
    "sequence.json",
    "timing.json",
    "coordination.json",
)

Case = dict[str, Any]


@pytest.fixture(autouse=True)
def last_look() -> None:
    """Leaves the rules' own second."""


def seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def same(actual: float | None, expected: float | None) -> bool:
    """Seconds and milliseconds, one of them apart at most."""
    if actual is None or expected is None:
        return actual is expected
    return abs(actual * 1000 - expected) <= 1


def backoff(given: Case) -> float:
    pauses = Backoff(lambda: float(given["jitter"]))
    for _ in range(given["failures"] - 1):
        pauses.pause()
    return pauses.pause(given["retryAfterMs"] / 1000)


def interval(given: Case) -> float | str:
    chosen, lease = given["chosenMs"], int(given["leaseMs"])
    terms = HolderTerms(5000, "quarterly" if chosen is None else int(chosen))
    return "invalid" if terms.fault(lease) else (terms.interval(lease) or 0) / 1000


def timeout(given: Case) -> float:
    left = math.inf if given["leftMs"] is None else given["leftMs"] / 1000
    if given["operation"] == "wait":
        return wait_timeout(given["leaseMs"] / 1000, left)
    return request_timeout(seconds(given["leaseMs"]), left)


TIMING: Mapping[str, Callable[[Case], Any]] = {
    "retryAfter": lambda given: retry_after(given["header"]),
    "backoff": backoff,
    "pollPause": lambda given: poll_pause(seconds(given["chosenMs"]), given["retryAfterMs"] / 1000, given["jitter"]),
    "returnPause": lambda given: return_pause(
        seconds(given["releasedAgoMs"]),
        seconds(given.get("unwantedForMs")),
        seconds(given["chosenMs"]),
        given["jitter"],
    ),
    "markPause": lambda given: mark_pause(given["jitter"]),
    "requestTimeout": timeout,
    "endpointTimeout": lambda given: endpoint_timeout(given["timeoutMs"] / 1000, given["endpoints"]),
    "heartbeatInterval": interval,
    "heartbeatPause": lambda given: heartbeat_pause_ms(given["intervalMs"], given["jitter"]) / 1000,
    "heartbeatRetryPause": lambda given: heartbeat_retry_pause_ms(given["pauseMs"], given["leftMs"]) / 1000,
    "suspended": lambda given: was_suspended_ms(given["monotonicMs"], given["wallMs"]),
}


def timing(case: Case) -> None:
    actual, expected = TIMING[case["call"]](case["given"]), case["expect"]
    assert actual == expected if isinstance(expected, str | bool) else same(actual, expected), (actual, expected)


def wait(case: Case) -> None:
    given = case["given"]
    chosen = given["wait"]
    if chosen == "forever":
        chosen = None
    in_seconds: Any = chosen if isinstance(chosen, str) else seconds(chosen)
    budget = Budget(in_seconds, 0.0, given["marginMs"] / 1000)
    ends = [budget.deadline]
    for at, version, lease in given["seen"]:
        budget.saw(version, lease / 1000, at / 1000)
        ends.append(budget.deadline)
    assert len(ends) == len(case["expect"])
    for actual, expected in zip(ends, case["expect"], strict=True):
        assert same(None if actual == math.inf else actual, expected), (ends, case["expect"])


def observe(case: Case) -> None:
    clocks = Clocks(0.0, 1e9)
    observations = Observations(clocks, margin=1.0)
    for step in case["steps"]:
        clocks.seconds = step["atMs"] / 1000
        match step["do"]:
            case "seen":
                lease = step["leaseMs"] / 1000
                observations.see(LockView("Moe", "held", "somebody", step["version"], lease))
            case "forget":
                observations.forget(("Moe", None))
            case "ask":
                assert observations.stale_version(("Moe", None)) == step["stale"], step
            case other:
                raise AssertionError(other)


def saved(case: Case) -> None:
    given = case["given"]
    clocks = Clocks(1000.0, 1_795_256_832.0)
    observations = Observations(clocks, given["marginMs"] / 1000)
    first_seen = round(clocks.epoch_ms()) - given["ageMs"]
    observations.load(
        [
            {
                "key": "Moe",
                "recordVersionNumber": "v",
                "leaseDurationMs": given["leaseMs"],
                "firstSeenEpochMs": first_seen,
            }
        ]
    )
    clocks.pass_by(given["afterMs"] / 1000)
    assert (observations.stale_version(("Moe", None)) is not None) is case["expect"]


def save(case: Case) -> None:
    given = case["given"]
    clocks = Clocks(0.0, (given["epochMs"] - given["seenAgoMs"]) / 1000)
    observations = Observations(clocks, margin=1.0)
    observations.see(LockView("Moe", "held", "somebody", "v", 20.0))
    clocks.seconds, clocks.epoch = given["seenAgoMs"] / 1000, given["epochMs"] / 1000
    (entry,) = observations.save()
    assert abs(entry["firstSeenEpochMs"] - case["expect"]) <= 1


KINDS: Mapping[str, type[LeaseholdError]] = {
    "held": LockHeld,
    "lost": LockLost,
    "superseded": Superseded,
    "not-found": LockNotFound,
    "version-mismatch": VersionMismatch,
    "forbidden": Forbidden,
    "invalid-request": InvalidRequest,
    "corrupt-record": CorruptRecord,
    "misconfigured": Misconfigured,
    "throttled": Throttled,
    "unavailable": Unavailable,
}


def problem(case: Case) -> None:
    given, expected = case["given"], dict(case["expect"])
    content = given["body"] if isinstance(given["body"], str) else json.dumps(given["body"])
    headers = {} if given["retryAfter"] is None else {"Retry-After": given["retryAfter"]}
    api = HttpApi("http://127.0.0.1:1", token=None, headers=None, auth=None)
    got = api.answer(given["status"], headers, content.encode())
    call = Call("POST", "/v1/heartbeat", {"key": "Moe"})
    with pytest.raises(LeaseholdError) as raised:
        read(call, got, Renewal.from_wire)
    error = raised.value
    assert type(error) is KINDS[expected.pop("kind")]
    assert isinstance(error, Unavailable) is expected.pop("retryable")
    members = {
        "unanswered": getattr(error, "sent", False),
        "retryAfterMs": getattr(error, "retry_after", 0.0) * 1000,
        "reason": getattr(error, "reason", None),
        "sequence": getattr(error, "sequence", None),
        "fencingToken": getattr(error, "fencing_token", None),
        "field": getattr(error, "field", None),
    }
    assert {name: members[name] for name in expected} == expected


class Scripted:
    """A transport that answers as the next step says, and records its requests."""

    def __init__(self, clocks: Clocks, steps: list[Case]) -> None:
        self.steps = list(steps)
        self.sent: list[Call] = []
        self._clocks = clocks

    async def send(self, call: Call, timeout: float) -> Answer:
        self.sent.append(call)
        step = self.steps.pop(0)
        token = step.get("fencingToken", 41)
        granted = {"recordVersionNumber": "v", "leaseDurationMs": 20000, "fencingToken": token}
        granted |= {"key": "Moe", "ownerName": "A", "outcome": "created"}
        match step["answer"]:
            case "granted" | "renewed":
                return Answer(200, {}, granted)
            case "too-late":
                self._clocks.pass_by(20.0)
                return Answer(200, {}, granted)
            case "held":
                lock = {**granted, "state": "held"}
                return Answer(423, {}, {"type": "held", "status": 423, "lock": lock})
            case "lost":
                return Answer(409, {}, {"type": "lost", "status": 409, "reason": "released"})
            case "superseded":
                told = {"sequence": step.get("sequence", 7), "fencingToken": token}
                return Answer(409, {}, {"type": "superseded", "status": 409, **told})
            case "gateway-throttled":
                return Answer(429, {}, {"message": "Too Many Requests"})
            case "unanswered":
                raise Unavailable("no answer")
        raise AssertionError(step)

    def reset(self) -> None: ...

    async def close(self) -> None: ...


class Process:
    """One client and one lock, under a clock that stands still."""

    def __init__(self, steps: list[Case]) -> None:
        self.clocks = Clocks(1000.0, 1e9)
        self.transport = Scripted(self.clocks, steps)
        self.client = Client("http://127.0.0.1:1", world=self.clocks)
        self.core = self.client._core
        self.core.api.transport = self.transport
        self.holding = Holding(manual_heartbeats=True, hold_on_unavailable=True)
        request: Any = {"key": "Moe", "ownerName": "A", "leaseDurationMs": 20000}
        self.acquisition = Acquisition(self.core, request, 20.0, self.holding, Guard)
        self.guard: Guard | None = None
        self.next: SendBeat[HeartbeatContent] | None = None
        """The heartbeat that follows the last one at once."""

    def acquire(self) -> None:
        """One turn of a wait."""
        budget = Budget(0.0, self.clocks.now(), 2.0)
        with suppress(LeaseholdError):
            result = run(self.acquisition.wait(budget, None, self.core.runtime.sleep))
            self.guard = None if isinstance(result, Held) else result

    def heartbeat(self) -> None:
        assert self.guard is not None
        self.guard._holder._faith = self.clocks.now_ms() + 10**9  # as where an outage is sat out
        send = self.next or self.guard._step(Renew(0, HeartbeatContent()))[0]
        assert send is not None
        self.next = run(self.guard._send(send))

    def resume(self, sequence: int | None) -> None:
        self.guard = self.client.resume(Handover("Moe", "the-lease-id", sequence), manual_heartbeats=True)

    def end(self) -> None:
        """Drops the plans: no time comes on a clock that stands still, and a thread would wait for ever."""
        keeper = self.client._core.runtime._keeper  # type: ignore[attr-defined]

        def is_idle() -> bool:
            for guard in self.core.live_guards():
                guard._holder.state = "released"  # type: ignore[attr-defined]
            # A task that runs just now may plan the next.
            for task in list(keeper._due):
                keeper.cancel(task)
            return keeper_threads() == 0

        eventually(is_idle)


def numbers(case: Case) -> None:
    process = Process(case["steps"])
    sent: list[Call] = []
    while steps := process.transport.steps:
        match steps[0]["do"]:
            case "acquire":
                process.acquire()
            case "heartbeat":
                process.heartbeat()
            case "resume":
                sent += process.transport.sent
                process.end()
                process = Process(steps)
                process.resume(steps[0]["given"])
            case other:
                raise AssertionError(other)
    sent += process.transport.sent
    process.end()
    assert len(sent) == len(case["steps"])
    before: Call | None = None
    for step, call in zip(case["steps"], sent, strict=True):
        assert call.members["sequence"] == step["sends"], step
        if before is not None:
            assert (call.members == before.members) is step["repeat"], step
            assert (call.members["requestId"] == before.members["requestId"]) is step["repeat"], step
            if step["do"] == "acquire":
                fresh = call.members["leaseId"] != before.members["leaseId"]
                assert fresh is step.get("newLeaseId", False), step
        before = call


def renewal(case: Case) -> None:
    given = case["given"]
    process = Process([given])
    guard = Guard(
        process.core,
        name=("Moe", None),
        lease_id="the-lease-id",
        sent=process.clocks.now_ms(),
        last_number=1,
        renewal=Renewal("v", 20.0, given["grantedToken"]),
        holding=process.holding,
        granted=Granted(),
    )
    send, _ = guard._step(Renew(1, HeartbeatContent()))
    assert send is not None
    told = "again" if run(guard._send(send)) else "renewed" if guard.valid else "lost"
    process.end()
    assert told == case["expect"]
    assert {call.members["fencingToken"] for call in process.transport.sent} == {given["grantedToken"]}
    assert guard.lost == ("taken-over" if told == "lost" else None)


def planned(case: Case) -> None:
    given = case["given"]
    clocks = Clocks(1000.0, 1e9)
    view = SemaphoreView(
        *("Moe", "held", "leasehold:semaphore", "v", 1.0),
        capacity=given["capacity"],
        available=given["available"],
        holders=tuple(Holder(i, "A", v, ms / 1000, permits, 1) for i, v, ms, permits in given["holders"]),
        queue=tuple(Ticket(i, "A", v, ms / 1000, permits, n) for i, v, ms, permits, n in given["queue"]),
    )
    leases = {entry.id: entry.lease for entry in view.entries}
    entries = Entries(clocks)
    entries.see(view)
    for name, version, age in given["observations"]:
        entries._seen[view.name][1][name] = Observation(version, leases[name], clocks.now() - age / 1000)
    step = plan(
        view,
        given["permits"],
        given["ticketId"],
        lambda entry: entries.stale_in(view.name, entry),
        seconds(given["refreshInMs"]),
        given["leftMs"] / 1000,
        given.get("unchangedMs", 0) / 1000,
        given.get("unchangedMs", 0) / 1000,
    )
    if isinstance(step, Look):
        assert list(case["expect"]) == ["waitMs"]
        assert same(step.seconds, case["expect"]["waitMs"]), step
    else:
        names = [{"holderId": e.id, "version": e.version, "permits": e.permits} for e in step.names]
        passes = {"passes": True} if getattr(step, "turn", None) == "passing" else {}
        assert {type(step).__name__.lower(): names} | passes == case["expect"]


CALLS: Mapping[str, Callable[[Case], None]] = {
    **dict.fromkeys(TIMING, timing),
    "wait": wait,
    "observe": observe,
    "saved": saved,
    "save": save,
    "problem": problem,
    "numbers": numbers,
    "renewal": renewal,
    "plan": planned,
}

CASES = [
    pytest.param(case, id=f"{case['call']}: {case['name']}")
    for file in FILES
    for case in json.loads((VECTORS / file).read_text("utf-8"))["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_client_keeps_the_rulebook(case: Case) -> None:
    CALLS[case["call"]](case)


def test_vectors_have_cases() -> None:
    assert len(CASES) > 100
