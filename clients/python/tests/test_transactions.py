"""Transactions against the real service, over a table of a user's own."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from conftest import TABLE, Bank, MakeClient, eventually
from proxy import Answer, DropAnswer, Fault, Proxy, Refuse, Seen, only

from leasehold import (
    CapacityMeter,
    Client,
    ConditionFailed,
    ConsumedCapacity,
    InvalidRequest,
    LeaseholdError,
    Transaction,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
    derive_transaction_id,
)

ROLLED_BACK = Answer(409, b'{"type": "rolled-back", "status": 409, "detail": "Another one needed it."}')
CONTENDED = Answer(409, b'{"type": "contended", "status": 409, "detail": "At work.", "publicId": "t"}')


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


@pytest.fixture
def proxy(bank: Bank) -> Iterator[Proxy]:
    with Proxy(bank.url) as proxy:
        yield proxy


@pytest.fixture
def client(bank: Bank, make_client: MakeClient) -> Client:
    return make_client(bank.url)


@pytest.fixture
def unreliable(proxy: Proxy, make_client: MakeClient) -> Client:
    return make_client(proxy.url)


def key(account: str) -> dict[str, Any]:
    return {"id": account}


def add(tx: Transaction, account: str, amount: int) -> None:
    tx.update(TABLE, key(account), "ADD balance :amount", {":amount": amount})


def move(source: str, target: str, amount: int) -> Callable[[Transaction], int]:
    def body(tx: Transaction) -> int:
        account = tx.get(TABLE, key(source))
        assert account is not None
        left = int(account["balance"]) - amount
        add(tx, target, amount)
        tx.put(TABLE, {"id": source, "balance": left})
        return left

    return body


def test_block_is_committed(bank: Bank, client: Client) -> None:
    moe, larry = bank.open(100), bank.open(0)
    with client.begin_transaction() as tx:
        account = tx.get(TABLE, key(moe))
        assert account == {"id": moe, "balance": Decimal(100)}
        add(tx, larry, 30)
        tx.put(TABLE, {"id": moe, "balance": account["balance"] - 30})
        assert client.read_item(TABLE, key(larry)) == {"id": larry, "balance": 0}
        assert client.read_item(TABLE, key(larry), isolation="uncommitted") == {"id": larry, "balance": 30}
    assert (bank.balance(moe), bank.balance(larry)) == (70, 30)
    status = client.transaction_status(tx.id)
    assert (status.state, status.reason) == ("committed", None)
    assert {request.key["id"] for request in status.requests} == {moe, larry}
    assert {"put", "update"} <= {request.operation for request in status.requests}
    assert abs(status.created_at - time.time()) < 60


def test_exception_rolls_back_and_passes_through(bank: Bank, client: Client) -> None:
    moe, larry = bank.open(100), bank.open(0)
    with pytest.raises(ZeroDivisionError), client.begin_transaction() as tx:
        add(tx, larry, 30)
        tx.delete(TABLE, key(moe))
        _ = 1 / 0
    assert (bank.balance(moe), bank.balance(larry)) == (100, 0)
    with pytest.raises(ZeroDivisionError):
        client.transaction(lambda tx: add(tx, larry, 1 // 0))
    with pytest.raises(KeyboardInterrupt), client.begin_transaction() as tx:
        add(tx, larry, 30)
        raise KeyboardInterrupt
    assert bank.balance(larry) == 0
    assert client.transaction_status(tx.id).state == "rolled-back"


def test_exception_survives_a_rollback_that_fails(
    bank: Bank, unreliable: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    moe = bank.open(100)
    with pytest.raises(ZeroDivisionError), unreliable.begin_transaction() as tx:
        add(tx, moe, 1)
        proxy.fault = only("rollback", Refuse())
        monkeypatch.setattr("leasehold._transactions.OPERATION_BOUND", 0.1)
        monkeypatch.setattr("leasehold._transactions._CALL_TIMEOUT", 1.0)
        _ = 1 / 0
    monkeypatch.undo()
    proxy.fault = lambda request: None
    tx.rollback()
    assert bank.balance(moe) == 100


def test_evicted_body_is_run_again(bank: Bank, client: Client) -> None:
    moe = bank.open(100)
    seen: list[int] = []

    def body(tx: Transaction) -> int:
        account = tx.get(TABLE, key(moe))
        assert account is not None
        seen.append(int(account["balance"]))
        if len(seen) == 1:
            # The transaction is idle for too long, and another one spends the money.
            client.transaction(lambda other: add(other, moe, -90))
        add(tx, moe, -10)
        return seen[-1]

    assert client.transaction(body) == 10
    assert seen == [100, 10]
    assert bank.balance(moe) == 0


def test_block_cannot_be_run_again_and_says_so(bank: Bank, client: Client) -> None:
    moe = bank.open(100)
    with pytest.raises(TransactionRolledBack) as error, client.begin_transaction() as tx:
        add(tx, moe, -10)
        client.transaction(lambda other: add(other, moe, 5))
    assert error.value.transaction_id == tx.id
    assert bank.balance(moe) == 105


@pytest.mark.parametrize("action", ["begin", "add", "commit"])
@pytest.mark.parametrize("trouble", [DropAnswer(), Refuse(), Answer(503), Answer(429)])
def test_lost_answers_cost_a_repeat_and_nothing_else(
    bank: Bank, unreliable: Client, proxy: Proxy, action: str, trouble: Fault
) -> None:
    moe, larry = bank.open(100), bank.open(0)
    proxy.fault = only(action, trouble, times=2)
    runs: list[Transaction] = []

    def body(tx: Transaction) -> int:
        runs.append(tx)
        return move(moe, larry, 30)(tx)

    assert unreliable.transaction(body) == 70
    assert len(runs) == 1
    assert {request.body["transactionId"] for request in proxy.seen} == {runs[0].id}
    assert (bank.balance(moe), bank.balance(larry)) == (70, 30)


def test_body_is_run_again_only_after_a_certain_rollback(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    """The first commit is carried out without an answer; the answer to the second is outdated."""
    moe, larry = bank.open(100), bank.open(0)
    faults: list[Fault] = [DropAnswer(), CONTENDED]
    proxy.fault = lambda request: faults.pop(0) if request.action == "commit" and faults else None
    assert unreliable.transaction(move(moe, larry, 30)) == 70
    assert [request.action for request in proxy.seen][-3:] == ["commit", "commit", "rollback"]
    assert (bank.balance(moe), bank.balance(larry)) == (70, 30)
    # A commit that was not carried out is repeated.
    faults = [Refuse(), CONTENDED]
    assert unreliable.transaction(move(moe, larry, 30)) == 40
    assert (bank.balance(moe), bank.balance(larry)) == (40, 60)


def test_repeat_by_hand_is_the_call_that_was_contended(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    """A part of a call that waited in vain may have been carried out."""
    moe = bank.open(100)
    faults: list[Fault] = [DropAnswer(), CONTENDED]
    proxy.fault = lambda request: faults.pop(0) if request.action == "add" and faults else None
    with unreliable.begin_transaction() as tx:
        with pytest.raises(TransactionContended):
            add(tx, moe, 1)
        add(tx, moe, 1)
        tx.commit()
    assert bank.balance(moe) == 101


@pytest.mark.parametrize(("trouble", "expected"), [(DropAnswer(), ("committed", 70)), (Refuse(), ("rolled-back", 100))])
def test_unanswered_commit_is_unknown_and_can_be_looked_up(
    bank: Bank,
    unreliable: Client,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Fault,
    expected: tuple[str, int],
) -> None:
    moe, larry = bank.open(100), bank.open(0)
    proxy.fault = only("commit", trouble)

    def body(tx: Transaction) -> int:
        left = move(moe, larry, 30)(tx)
        monkeypatch.setattr("leasehold._transactions.OPERATION_BOUND", 0.1)
        monkeypatch.setattr("leasehold._transactions._CALL_TIMEOUT", 1.0)
        return left

    with pytest.raises(Unavailable) as error:
        unreliable.transaction(body)
    monkeypatch.undo()
    proxy.fault = lambda request: None
    transaction_id = error.value.transaction_id
    assert transaction_id is not None
    eventually(lambda: unreliable.transaction_status(transaction_id).finished)
    found = unreliable.transaction_status(transaction_id).state, bank.balance(moe)
    assert (*found, bank.balance(larry)) == (*expected, 100 - expected[1])


def test_tries_and_time_are_bounded(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    moe = bank.open(100)
    proxy.fault = lambda request: CONTENDED if request.action == "add" else None
    with pytest.raises(TransactionContended) as error:
        unreliable.transaction(lambda tx: add(tx, moe, 1), tries=3)
    assert (error.value.other, proxy.count("begin")) == ("t", 3)
    assert proxy.count("rollback") == 3
    start = time.monotonic()
    with pytest.raises(TransactionContended):
        unreliable.transaction(lambda tx: add(tx, moe, 1), tries=10**6, deadline=0.5)
    assert time.monotonic() - start < 60
    proxy.fault = only("begin", ROLLED_BACK)
    with pytest.raises(TransactionRolledBack):
        unreliable.transact([{"Put": {"TableName": TABLE, "Item": key(moe)}}], tries=2)
    assert bank.balance(moe) == 100


def test_body_is_committed_when_it_found_another_way(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    moe, larry = bank.open(100), bank.open(0)
    proxy.fault = lambda request: CONTENDED if moe in str(request.body) else None

    def body(tx: Transaction) -> str:
        try:
            add(tx, moe, 1)
        except TransactionContended:
            add(tx, larry, 1)
        return "another way"

    assert unreliable.transaction(body, tries=1) == "another way"
    assert (bank.balance(moe), bank.balance(larry)) == (100, 1)
    proxy.seen.clear()
    with pytest.raises(ZeroDivisionError):
        unreliable.transaction(lambda tx: (body(tx), 1 // 0))
    assert proxy.count("begin") == 1, "what it raises then is not due to others"
    assert bank.balance(larry) == 1


def test_condition_that_fails_is_the_callers_to_deal_with(bank: Bank, client: Client) -> None:
    moe = bank.open(10)
    runs: list[None] = []

    def body(tx: Transaction) -> None:
        runs.append(None)
        condition = {
            "UpdateExpression": "ADD balance :amount",
            "ConditionExpression": "balance >= :needed",
            "ExpressionAttributeValues": {":amount": -30, ":needed": 30},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        tx.add(
            [
                {"Get": {"TableName": TABLE, "Key": key("nobody")}},
                {"Update": {"TableName": TABLE, "Key": key(moe), **condition}},
            ]
        )

    with pytest.raises(ConditionFailed) as error:
        client.transaction(body)
    assert (error.value.request, error.value.item) == (1, {"id": moe, "balance": 10})
    assert len(runs) == 1
    with pytest.raises(ConditionFailed), client.begin_transaction() as tx:
        tx.check(TABLE, key(moe), "balance > :x", values={":x": 10})
    assert bank.balance(moe) == 10


def test_thinking_is_no_reason_to_be_taken_for_abandoned(
    bank: Bank, unreliable: Client, proxy: Proxy, client: Client
) -> None:
    """Keep-alives: others wait, and this transaction is not evicted."""
    moe = bank.open(100)
    waited: list[float] = []

    def other() -> None:
        start = time.monotonic()
        client.transaction(lambda tx: add(tx, moe, 1))
        waited.append(time.monotonic() - start)

    with unreliable.begin_transaction(keep_alive=0.05) as tx:
        add(tx, moe, 1)
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(4)
        add(tx, moe + "-too", 1)
    thread.join(60)
    assert waited[0] > 3.5, "more than the patience with one that is silent"
    assert bank.balance(moe) == 102
    signs = sum(request.body.get("requests") == [] for request in proxy.seen)
    assert signs > 5
    time.sleep(0.3)
    assert sum(request.body.get("requests") == [] for request in proxy.seen) <= signs + 1, "it is over"


def test_taken_here_committed_there(bank: Bank, make_client: MakeClient) -> None:
    here, there = make_client(bank.url), make_client(bank.url)
    moe = bank.open(100)
    begun = here.begin_transaction()
    add(begun, moe, -30)
    resumed = there.resume_transaction(begun.id)
    account = resumed.get(TABLE, key(moe))
    assert account is not None
    assert account["balance"] == 70
    resumed.commit()
    assert bank.balance(moe) == 70
    begun.commit()
    with pytest.raises(TransactionCommitted):
        begun.rollback()
    with pytest.raises(TransactionCommitted):
        add(begun, moe, 1)
    with pytest.raises(TransactionNotFound):
        here.transaction_status(str(uuid.uuid4()))
    with pytest.raises(InvalidRequest, match="UUID"):
        here.transaction_status("no id")
    with here.begin_transaction() as tx:
        add(tx, moe, 1)
    assert bank.balance(moe) == 71


def test_one_call_does_it_where_all_is_known(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    moe, larry = bank.open(100), bank.open(0)

    def update(account: str, amount: int, **more: Any) -> dict[str, dict[str, Any]]:
        values = {":amount": amount}
        members = {"UpdateExpression": "ADD balance :amount", "ExpressionAttributeValues": values, **more}
        return {"Update": {"TableName": TABLE, "Key": key(account), **members}}

    proxy.fault = only("begin", DropAnswer(), times=2)
    assert unreliable.transact([update(moe, -30), update(larry, 30)]) == [None, None]
    assert (bank.balance(moe), bank.balance(larry)) == (70, 30)
    new = "ALL_NEW"
    answers = unreliable.transact([update(moe, -30, ReturnValues=new), update(larry, 30, ReturnValues=new)])
    assert answers == [{"id": moe, "balance": 40}, {"id": larry, "balance": 60}]
    proxy.fault = only("begin", DropAnswer(), times=1)
    with pytest.raises(TransactionCommitted):
        unreliable.transact([update(moe, -30, ReturnValues=new)])
    assert bank.balance(moe) == 10
    proxy.fault = only("begin", ROLLED_BACK, times=1)
    unreliable.transact([update(moe, -30)])
    assert bank.balance(moe) == -20
    ids = [request.body["transactionId"] for request in proxy.seen]
    assert len(set(ids)) == 5, "one id for each transaction, and for its repeats"


@pytest.mark.parametrize("first_try", ["none", "rolled-back", "ended early"])
def test_call_under_a_business_key_is_carried_out_once(bank: Bank, make_client: MakeClient, first_try: str) -> None:
    """Two processes make the call. Where its first try was rolled back, both come to the same next one."""
    moe = bank.open(100)
    transaction_id = derive_transaction_id(uuid.uuid4(), "order 4711")
    update: dict[str, Any] = {"TableName": TABLE, "Key": key(moe), "UpdateExpression": "ADD balance :one"}
    update |= {"ConditionExpression": "attribute_not_exists(closed)", "ExpressionAttributeValues": {":one": 1}}
    if first_try == "rolled-back":
        client = make_client(bank.url)
        client.transact([{"Put": {"TableName": TABLE, "Item": {**key(moe), "balance": 100, "closed": True}}}])
        with pytest.raises(ConditionFailed):
            client.transact([{"Update": update}], transaction_id=transaction_id)
        client.transact([{"Put": {"TableName": TABLE, "Item": {**key(moe), "balance": 100}}}])
    elif first_try == "ended early":
        with pytest.raises(TransactionNotFound):
            make_client(bank.url).resume_transaction(transaction_id).rollback()
    for _ in range(2):
        make_client(bank.url).transact([{"Update": update}], transaction_id=transaction_id)
    assert bank.balance(moe) == 101


def test_derived_id_is_that_of_the_rfc() -> None:
    dns = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    assert derive_transaction_id(dns, "www.example.com") == "5c146b14-3c52-8afd-938a-375d0df1fbf6"
    assert derive_transaction_id(uuid.UUID(dns), "Bestellung 4711, ä") == "0b84e752-9b93-81ec-8b92-0440b68bc3c5"
    with pytest.raises(ValueError, match="badly formed"):
        derive_transaction_id("orders", "1")


@pytest.mark.parametrize("first", [DropAnswer(), Refuse()])
def test_one_call_is_repeated_only_after_a_certain_rollback(
    bank: Bank, unreliable: Client, proxy: Proxy, first: Fault
) -> None:
    moe = bank.open(100)
    faults = [first, CONTENDED]
    proxy.fault = lambda request: faults.pop(0) if request.action == "begin" and faults else None
    update = {"UpdateExpression": "ADD balance :x", "ExpressionAttributeValues": {":x": 1}}
    assert unreliable.transact([{"Update": {"TableName": TABLE, "Key": key(moe), **update}}]) == [None]
    assert [request.action for request in proxy.seen] == ["begin", "begin", "begin"]
    assert len({request.body["transactionId"] for request in proxy.seen}) == 1
    assert bank.balance(moe) == 101


def test_readers_choose_what_they_see(bank: Bank, client: Client) -> None:
    moe, new = bank.open(100), f"account-{uuid.uuid4()}"
    tx = client.begin_transaction()
    add(tx, moe, -30)
    add(tx, new, 1)
    keys = [(TABLE, key(new)), (TABLE, key(moe))]
    assert client.read_items(keys) == [None, {"id": moe, "balance": 100}]
    assert client.read_items(keys, isolation="uncommitted") == [
        {"id": new, "balance": 1},
        {"id": moe, "balance": 70},
    ]
    assert client.read_item(TABLE, key(moe), projection="#b", names={"#b": "balance"}) == {"balance": 100}
    queried = list(client.list_items(TABLE, key_condition="id = :id", values={":id": moe}))
    assert queried == [{"id": moe, "balance": 100}]
    scanned = {item["id"]: item for item in client.list_items(TABLE, page_size=2)}
    assert scanned[moe]["balance"] == 100
    assert new not in scanned
    tx.rollback()
    assert bank.raw(new) is None


def test_equal_adds_of_a_block_count_each(bank: Bank, unreliable: Client, proxy: Proxy) -> None:
    moe = bank.open(0)
    faults: list[Fault | None] = [DropAnswer(), None, DropAnswer()]
    proxy.fault = lambda request: faults.pop(0) if request.action == "add" and faults else None
    with unreliable.begin_transaction() as tx:
        for _ in range(3):
            add(tx, moe, 1)
    assert bank.balance(moe) == 3


def indexed(bank: Bank) -> str:
    """A table of things by owner."""
    table = f"indexed-{uuid.uuid4()}"
    owner = {"AttributeName": "owner", "KeyType": "HASH"}
    index = {"IndexName": "by-owner", "KeySchema": [owner], "Projection": {"ProjectionType": "ALL"}}
    bank.call(
        "CreateTable",
        {
            "TableName": table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("id", "owner")],
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "GlobalSecondaryIndexes": [index],
        },
    )
    for name, who in (("a", "Moe"), ("b", "Larry"), ("c", "Moe")):
        bank.call("PutItem", {"TableName": table, "Item": {"id": {"S": name}, "owner": {"S": who}}})
    return table


def test_query_locks_what_it_finds(bank: Bank, client: Client) -> None:
    table = indexed(bank)
    with client.begin_transaction() as tx:
        found = tx.query(
            table,
            "#o = :o",
            {":o": "Moe"},
            index_name="by-owner",
            names={"#o": "owner"},
            projection="id",
            forward=False,
        )
        assert found == [{"id": "c"}, {"id": "a"}]
        assert tx.query(table, "id = :id", {":id": "none"}) == []
        tx.update(table, {"id": "a"}, "SET seen = :n", {":n": len(found)})
        assert [item["seen"] for item in tx.query(table, "id = :id", {":id": "a"})] == [2]
    # Three items, one of them written.
    assert {request.key["id"] for request in client.transaction_status(tx.id).requests} == {"a", "c"}
    assert client.read_item(table, {"id": "a"}) == {"id": "a", "owner": "Moe", "seen": 2}
    with pytest.raises(InvalidRequest, match="add of its own"):
        client.transact([{"Query": {"TableName": table, "KeyConditionExpression": "id = :id"}}])


def test_listing_goes_by_an_index(bank: Bank, client: Client) -> None:
    table = indexed(bank)
    of_moe = client.list_items(
        table,
        index_name="by-owner",
        key_condition="#owner = :owner",
        names={"#owner": "owner"},
        values={":owner": "Moe"},
        page_size=1,
    )
    assert sorted(item["id"] for item in of_moe) == ["a", "c"]


def test_everything_that_dynamodb_stores_comes_back(bank: Bank, client: Client) -> None:
    item = {
        "id": f"all-{uuid.uuid4()}",
        "none": None,
        "flag": True,
        "text": "Müller 🔒",
        "empty": "",
        "number": Decimal("-0.1"),
        "large": 10**37 + 1,
        "bytes": b"\x00\xff",
        "list": [1, "two", [None], {"three": 3}],
        "map": {"a": {"b": b""}},
        "texts": {"a", "b"},
        "numbers": {1, Decimal("2.5")},
        "blobs": {b"a", b"\xff"},
    }
    with client.begin_transaction() as tx:
        tx.put(TABLE, item)
    assert client.read_item(TABLE, key(str(item["id"]))) == item


@pytest.mark.parametrize(
    "value",
    [0.1, float("nan"), Decimal("NaN"), Decimal("Infinity"), 10**200, 10**38 + 1, set(), {1, "a"}, object()],
)
def test_values_without_a_dynamodb_type_are_refused(client: Client, value: object) -> None:
    with pytest.raises(InvalidRequest), client.begin_transaction() as tx:
        tx.put(TABLE, {"id": "never", "value": value})
    with pytest.raises(InvalidRequest):
        client.transact([{"Put": {"TableName": TABLE, "Item": {"id": "never", "list": [value]}}}])


def test_eight_loops_of_transfers_neither_make_nor_lose_money(bank: Bank, make_client: MakeClient) -> None:
    accounts = [bank.open(100) for _ in range(4)]

    def loop(number: int) -> None:
        client = make_client(bank.url)
        for turn in range(6):
            source, target = accounts[(number + turn) % 4], accounts[(number * turn + 1) % 4]
            if source != target:
                client.transaction(move(source, target, 7), tries=100, deadline=60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(loop, range(8)))
    assert sum(bank.balance(account) for account in accounts) == 400


def test_money_stays_where_answers_are_lost(bank: Bank, proxy: Proxy, make_client: MakeClient) -> None:
    accounts = [bank.open(100) for _ in range(3)]
    asked = [0]
    lock = threading.Lock()

    def fault(request: Seen) -> Fault | None:
        with lock:
            asked[0] += 1
            return [None, None, None, DropAnswer(), None, Refuse(), None, Answer(503)][asked[0] % 8]

    proxy.fault = fault
    done: list[int] = []

    def step(number: int) -> Callable[[Transaction], None]:
        def body(tx: Transaction) -> None:
            add(tx, accounts[number % 3], -1)
            add(tx, accounts[(number + 1) % 3], 1)

        return body

    def loop(number: int) -> None:
        client = make_client(proxy.url)
        for turn in range(4):
            client.transaction(step(number + turn), tries=100, deadline=60)
            done.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(loop, range(4)))
    assert len(done) == 16
    assert sum(bank.balance(account) for account in accounts) == 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_a_fork_ends_nothing_of_its_parent(bank: Bank, client: Client, kind: str) -> None:
    if kind != "threads":
        pytest.skip("a block of an event loop is left in that event loop")
    moe = bank.open(100)
    with client.begin_transaction() as tx:
        add(tx, moe, 1)
        child = os.fork()
        if child == 0:
            try:
                tx.__exit__(None, None, None)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client.transaction_status(tx.id).state == "pending"
    assert bank.balance(moe) == 101


def test_client_that_was_closed_opens_nothing(bank: Bank, make_client: MakeClient) -> None:
    client = make_client(bank.url)
    client.close()
    for attempt in (client.begin_transaction, lambda: client.transaction(lambda tx: None), lambda: client.transact([])):
        with pytest.raises(LeaseholdError, match="closed"):
            attempt()
    with pytest.raises(InvalidRequest):
        make_client(bank.url).begin_transaction(keep_alive=0)


def test_meter_adds_up_the_capacity_of_all_calls(client: Client, bank: Bank) -> None:
    one_call, block, by_hand = CapacityMeter(), CapacityMeter(), CapacityMeter()
    account = bank.open(1)
    request = {"Update": {"TableName": TABLE, "Key": key(account), "UpdateExpression": "SET balance = balance"}}
    client.transact([request], capacity=one_call)
    # 2N+2 units for N items in one call, by docs/performance.md.
    assert one_call.consumed[TABLE] == ConsumedCapacity(0, 2)
    assert sum(units.write_units for units in one_call.consumed.values()) == 4

    client.transaction(lambda tx: add(tx, account, 1), capacity=block)
    with client.begin_transaction(capacity=block) as tx:
        add(tx, account, 1)
    # 3N+7 units for N items in begin, add and commit. A busy service frees the item after its answer.
    assert 12 < sum(units.write_units for units in block.consumed.values()) <= 20

    opened = client.begin_transaction(capacity=by_hand)
    assert sum(units.write_units for units in by_hand.consumed.values()) > 0
    client.resume_transaction(opened.id).rollback()
    seen = by_hand.consumed
    with pytest.raises(TransactionRolledBack):
        add(opened, account, 1)
    assert by_hand.consumed == seen, "a refused call tells nothing"
