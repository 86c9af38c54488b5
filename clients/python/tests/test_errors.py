"""Errors as values: they survive copying, pickling and the way back from another process."""

from __future__ import annotations

import concurrent.futures
import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from decimal import Decimal

import pytest
from conftest import MakeClient

import leasehold
from leasehold import (
    Client,
    CloseError,
    ConditionFailed,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockView,
    Superseded,
    Throttled,
    TransactionContended,
    TransactionRolledBack,
    Unavailable,
    VersionMismatch,
)

VIEW = LockView("Moe", "held", "somebody", "v", 20.0, attributes={"job": ["export", None]})

KINDS = {
    kind
    for _, kind in inspect.getmembers(leasehold, inspect.isclass)
    if issubclass(kind, LeaseholdError) and kind is not LeaseholdError
}

SAMPLES: list[LeaseholdError] = [
    LockHeld(VIEW, 3.0),
    LockLost("taken-over", VIEW, key="Moe", sort_key="a"),
    VersionMismatch("it changed", VIEW),
    InvalidRequest("no", "lease"),
    Unavailable("no answer", 2.0, sent=False),
    Throttled("slow down", 1.0),
    TransactionContended("at work", "other", 1.0),
    TransactionRolledBack("needed by another", 1.0),
    Superseded("later", 7, 41),
    ConditionFailed("no", 3, {"id": "Moe", "balance": Decimal("1.5"), "blob": b"\x00"}),
    CloseError((LockHeld(VIEW), OSError("no token"))),
]
OTHERS = KINDS - {type(error) for error in SAMPLES}
SAMPLES += [kind("a message") for kind in sorted(OTHERS, key=repr)]


def told(error: LeaseholdError) -> object:
    """Everything that a caller can see of an error."""
    members = {name: repr(value) for name, value in vars(error).items()}
    return type(error), error.args, str(error), members


def pickled(error: LeaseholdError) -> LeaseholdError:
    again: LeaseholdError = pickle.loads(pickle.dumps(error))
    return again


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickle_and_copy(
    error: LeaseholdError, again: Callable[[LeaseholdError], LeaseholdError]
) -> None:
    error.transaction_id = "a-transaction"
    assert told(again(error)) == told(error)
    assert again(error) is not error


def test_error_of_an_applications_own_kind_survives_too() -> None:
    assert told(pickled(_Own(1, reason="mine"))) == told(_Own(1, reason="mine"))


class _Own(LockHeld):
    def __init__(self, number: int, *, reason: str) -> None:
        super().__init__(VIEW)
        self.number, self.reason = number, reason


def _acquire_elsewhere(url: str, key: str) -> str:
    with Client(url) as client, client.lock(key, wait=3):
        return "held"


def _work_elsewhere(number: int) -> int:
    return number * 2


def test_lock_held_comes_back_from_a_process_pool(service: str, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="first", lease=60).acquire(key).granted()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(LockHeld) as error:
            pool.submit(_acquire_elsewhere, service, key).result(timeout=60)
        assert error.value.lock.owner_name == "first"
        assert pool.submit(_work_elsewhere, 21).result(timeout=60) == 42, "the pool is not broken"


def test_lock_held_comes_back_from_multiprocessing(service: str, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="first", lease=60).acquire(key).granted()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        refused = pool.apply_async(_acquire_elsewhere, (service, key))
        unrelated = pool.apply_async(_work_elsewhere, (21,))
        with pytest.raises(LockHeld) as error:
            refused.get(timeout=60)
        assert error.value.lock.key == key
        assert unrelated.get(timeout=60) == 42
