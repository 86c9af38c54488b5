"""The conclusions of an observer, with a clock that the test moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold import InvalidRequest, LockView
from leasehold._world import World
from leasehold.observations import Observations

NAME = ("Moe", None)


class Clocks(World):
    """Two clocks that stand still."""

    def __init__(self, now: float, epoch: float) -> None:
        self.seconds = now
        self.epoch = epoch

    def now(self) -> float:
        return self.seconds

    def epoch_ms(self) -> float:
        return self.epoch * 1000

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.epoch += seconds


def view(version: str, lease: float = 20.0, sort_key: str | None = None) -> LockView:
    return LockView("Moe", "held", "somebody", version, lease, sort_key)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks(now=100.0, epoch=1_795_256_832.3241)


@pytest.fixture
def observations(clocks: Clocks) -> Observations:
    return Observations(clocks, margin=1.0)


def test_version_is_sent_only_after_the_records_own_lease(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    clocks.pass_by(20.019)
    observations.see(view("a"))
    assert observations.stale_version(NAME) is None
    clocks.pass_by(0.002)
    assert observations.stale_version(NAME) == "a"


def test_changed_version_starts_again(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    clocks.pass_by(19)
    observations.see(view("b", lease=5))
    clocks.pass_by(5)
    assert observations.stale_version(NAME) is None
    clocks.pass_by(0.006)
    assert observations.stale_version(NAME) == "b"


def test_sort_keys_are_locks_of_their_own(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a", sort_key="1"))
    clocks.pass_by(20.1)
    assert observations.stale_version(NAME) is None
    assert observations.stale_version(("Moe", "1")) == "a"


def test_granted_or_released_lock_is_forgotten(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    observations.forget(NAME)
    clocks.pass_by(100)
    assert observations.stale_version(NAME) is None


def test_document_is_the_same_in_every_language(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    observations.see(view("b", lease=0.5, sort_key="1"))
    assert json.loads(json.dumps(observations.save())) == [
        {
            "key": "Moe",
            "recordVersionNumber": "a",
            "leaseDurationMs": 20000,
            "firstSeenEpochMs": 1795256832325,  # rounded up: never older than it is
        },
        {
            "key": "Moe",
            "sortKey": "1",
            "recordVersionNumber": "b",
            "leaseDurationMs": 500,
            "firstSeenEpochMs": 1795256832325,
        },
    ]


def test_loaded_observation_needs_the_lease_and_the_margin(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    saved = observations.save()
    elsewhere = Clocks(now=7.0, epoch=clocks.epoch + 20.9)
    loaded = Observations(elsewhere, margin=1.0)
    loaded.load(saved)
    assert loaded.stale_version(NAME) is None
    elsewhere.pass_by(0.2)
    assert loaded.stale_version(NAME) == "a"


def test_margin_does_not_add_up(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    for _ in range(43):  # a process each half second, that lives for a moment
        clocks.pass_by(0.5)
        saved, observations = observations.save(), Observations(clocks, margin=1.0)
        observations.load(saved)
        observations.see(view("a"))
    assert observations.stale_version(NAME) == "a"


def test_time_in_the_future_starts_again(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    saved = observations.save()
    behind = Clocks(now=0.0, epoch=clocks.epoch - 1000)
    loaded = Observations(behind, margin=1.0)
    loaded.load(saved)
    behind.pass_by(20.9)
    assert loaded.stale_version(NAME) is None
    behind.pass_by(0.2)
    assert loaded.stale_version(NAME) == "a"


def test_own_observation_survives_another_version(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    saved = observations.save()
    clocks.pass_by(30)
    observations.see(view("b"))
    observations.load(saved)
    assert observations.stale_version(NAME) is None
    clocks.pass_by(20.1)
    assert observations.stale_version(NAME) == "b"


def test_older_of_two_sights_of_one_version_counts(clocks: Clocks, observations: Observations) -> None:
    observations.see(view("a"))
    saved = observations.save()
    clocks.pass_by(15)
    other = Observations(clocks, margin=1.0)
    other.see(view("a"))
    other.load(saved)
    clocks.pass_by(6.1)
    assert other.stale_version(NAME) == "a"


@pytest.mark.parametrize(
    "entry",
    [
        {},
        "text",
        {"key": "Moe", "recordVersionNumber": "a", "leaseDurationMs": "20", "firstSeenEpochMs": 1},
        {"key": "Moe", "recordVersionNumber": "a", "leaseDurationMs": -1, "firstSeenEpochMs": 1},
        {"key": "Moe", "recordVersionNumber": 1, "leaseDurationMs": 20, "firstSeenEpochMs": 1},
        {"key": "Moe", "recordVersionNumber": "a", "leaseDurationMs": 20, "firstSeenEpochMs": float("nan")},
        {"key": "Moe", "sortKey": 1, "recordVersionNumber": "a", "leaseDurationMs": 2, "firstSeenEpochMs": 1},
    ],
)
def test_malformed_observation_is_refused(observations: Observations, entry: Any) -> None:
    good = {"key": "Moe", "recordVersionNumber": "a", "leaseDurationMs": 20, "firstSeenEpochMs": 1}
    with pytest.raises(InvalidRequest):
        observations.load([good, entry])  # type: ignore[list-item]
    assert observations.stale_version(NAME) is None


def test_memory_is_bounded(clocks: Clocks, observations: Observations) -> None:
    for number in range(10_005):
        observations.see(LockView(str(number), "held", "somebody", "a", 1.0))
    assert len(observations.save()) == 10_000
    clocks.pass_by(1.1)
    assert observations.stale_version(("0", None)) is None
    assert observations.stale_version(("10004", None)) == "a"
