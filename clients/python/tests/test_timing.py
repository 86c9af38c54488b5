"""The timing rules that no vector has."""

import math

import pytest

from leasehold import InvalidRequest
from leasehold._guard import Holding
from leasehold._timing import Budget, lease_to_ms


@pytest.mark.parametrize("wanted", [10.1, 0, math.inf])
def test_interval_above_half_the_lease_is_refused(wanted: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        Holding(wanted).check(20)
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
