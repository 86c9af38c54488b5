"""The timing rules that no vector has."""

import math

import pytest

from leasehold import InvalidRequest
from leasehold._timing import Budget, Lease, heartbeat_every, lease_to_ms


def test_holding_on_believes_but_proves_nothing() -> None:
    lease = Lease()
    lease.send(100, 1, 20)
    lease.answered(20)
    assert lease.believed_until == 120
    lease.hold_on(118)
    assert (lease.ends, lease.believed_until) == (120, 138)


@pytest.mark.parametrize("wanted", [10.1, 0, -1, math.nan])
def test_interval_above_half_the_lease_is_refused(wanted: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        heartbeat_every(wanted, 20)
    assert error.value.field == "heartbeat_interval"


@pytest.mark.parametrize("lease", [0.099, 86401, math.nan, math.inf, -1])
def test_lease_out_of_range_is_refused(lease: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        lease_to_ms(lease)
    assert error.value.field == "lease"


def test_lease_travels_in_milliseconds() -> None:
    assert [lease_to_ms(lease) for lease in (0.1, 1.001, 20, 86400)] == [100, 1001, 20000, 86400000]


@pytest.mark.parametrize("wait", [-1, math.nan, "forever"])
def test_wait_that_is_none_is_refused(wait: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        Budget(wait, now=0, margin=2)
    assert error.value.field == "wait"
