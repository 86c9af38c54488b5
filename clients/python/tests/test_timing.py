"""The timing rules, without a clock."""

import math

import pytest

from leasehold import InvalidRequest
from leasehold._timing import (
    Backoff,
    Budget,
    Lease,
    heartbeat_every,
    heartbeat_pause,
    heartbeat_retry_pause,
    lease_to_ms,
    poll_pause,
    request_timeout,
)


def test_a_lease_counts_from_before_the_request_was_sent() -> None:
    assert Lease(sent=100.0, seconds=20).ends == 120
    lease = Lease(sent=100.0, seconds=20)
    lease.send(105, 20)
    assert lease.ends == 120  # nothing is renewed before the answer
    lease.renewed(20)
    assert lease.ends == 125


def test_a_request_that_was_given_up_bounds_the_lease_by_its_own() -> None:
    lease = Lease(sent=100.0, seconds=60)
    lease.send(110, 10)
    assert lease.ends == 120, "it may be carried out at once"
    lease.unanswered()
    assert lease.ends == 120
    lease.send(115, 60)
    lease.renewed(60)
    assert lease.ends == 125, "it may be carried out after the last renewal, and write ten seconds"
    lease.send(200, 60)
    lease.renewed(60)
    assert lease.ends == 210, "and it may for as long as the lock is held"


def test_a_request_that_was_refused_bounds_nothing() -> None:
    lease = Lease(sent=100.0, seconds=60)
    lease.send(110, 10)
    lease.refused()
    assert lease.ends == 160


def test_a_shorter_lease_under_way_does_not_end_one_that_goes_on() -> None:
    lease = Lease(sent=100.0, seconds=20)
    lease.send(112, 10)
    assert lease.ends == 120
    lease.renewed(10)
    assert lease.ends == 122


def test_an_unanswered_acquire_bounds_a_lease_made_longer() -> None:
    lease = Lease(sent=103.0, seconds=20, unanswered=100.0)
    assert lease.ends == 123
    lease.send(105, 60)
    lease.renewed(60)
    assert lease.ends == 125


def test_holding_on_believes_but_proves_nothing() -> None:
    lease = Lease(sent=100.0, seconds=20)
    assert lease.believed_until == 120
    lease.hold_on(118)
    assert (lease.ends, lease.believed_until) == (120, 138)


@pytest.mark.parametrize(
    ("lease", "timeout"), [(None, 5), (86400, 5), (20, 5), (8, 2), (1, 0.25), (0.4, 0.2), (0.1, 0.2)]
)
def test_a_request_has_a_quarter_of_the_lease(lease: float | None, timeout: float) -> None:
    assert request_timeout(lease) == timeout


def test_a_request_ends_with_its_operation() -> None:
    assert request_timeout(20, rest=1.5) == 1.5
    assert request_timeout(20, rest=-3) == 0.2
    assert request_timeout(20, rest=math.inf) == 5


def test_pauses_between_tries_double_up_to_two_seconds() -> None:
    backoff = Backoff(chance=lambda: 1.0)
    assert [backoff.pause() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert Backoff(chance=lambda: 0.0).pause() == 0.0
    assert Backoff(chance=lambda: 0.5).pause(retry_after=3) == 3


def test_polls_are_late_by_up_to_a_quarter() -> None:
    assert poll_pause(1.0, 0.0, chance=0.0) == 1.0
    assert poll_pause(1.0, 0.0, chance=1.0) == 1.25
    assert poll_pause(1.0, 4.0, chance=1.0) == 5.0
    assert poll_pause(2.0, 1.0, chance=0.0) == 2.0


def test_heartbeats_are_early_by_up_to_a_tenth() -> None:
    assert heartbeat_every(None, 20) == 5
    assert heartbeat_every(10, 20) == 10
    assert heartbeat_pause(5, chance=0.0) == 5
    assert heartbeat_pause(5, chance=1.0) == 4.5


def test_no_pause_outlasts_a_third_of_the_lease_that_is_left() -> None:
    assert heartbeat_retry_pause(0.5, rest=9) == 0.5
    assert heartbeat_retry_pause(30, rest=9) == 3
    assert heartbeat_retry_pause(0.1, rest=-1) == 0


@pytest.mark.parametrize("wanted", [10.1, 0, -1, math.nan])
def test_an_interval_of_more_than_half_the_lease_is_refused(wanted: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        heartbeat_every(wanted, 20)
    assert error.value.field == "heartbeat_interval"


@pytest.mark.parametrize("lease", [0.099, 86401, math.nan, math.inf, -1])
def test_a_lease_out_of_range_is_refused(lease: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        lease_to_ms(lease)
    assert error.value.field == "lease"


def test_a_lease_travels_in_milliseconds() -> None:
    assert [lease_to_ms(lease) for lease in (0.1, 1.001, 20, 86400)] == [100, 1001, 20000, 86400000]


def test_a_wait_is_one_observed_lease_and_a_margin() -> None:
    budget = Budget("lease", now=100, lease=20, margin=2)
    assert budget.deadline == 122
    budget.saw("a", lease=5, now=103)
    assert budget.deadline == 110
    budget.saw("b", lease=60, now=104)
    assert budget.deadline == 110


def test_extend_begins_again_with_each_version() -> None:
    budget = Budget("extend", now=100, lease=20, margin=2)
    budget.saw("a", lease=5, now=103)
    budget.saw("a", lease=5, now=105)
    assert budget.deadline == 110
    budget.saw("b", lease=5, now=106)
    assert budget.deadline == 113


def test_a_fixed_wait_and_none_do_not_depend_on_what_is_seen() -> None:
    for wait, deadline in ((3.0, 103.0), (0, 100.0), (None, math.inf)):
        budget = Budget(wait, now=100, lease=20, margin=2)
        budget.saw("a", lease=5, now=101)
        assert budget.deadline == deadline


@pytest.mark.parametrize("wait", [-1, math.nan, "forever"])
def test_a_wait_that_is_none_is_refused(wait: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        Budget(wait, now=0, lease=20, margin=2)
    assert error.value.field == "wait"
