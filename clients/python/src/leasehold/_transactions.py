"""The rules of transactions over DynamoDB items, T1 to T7, for every kind of client."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from ._capacity import CapacityMeter
from ._durations import whole
from ._dynamodb import from_item, to_item
from ._timing import OPERATION_BOUND, Backoff
from .errors import (
    InvalidRequest,
    LeaseholdError,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
)
from .model import Item, Value

if TYPE_CHECKING:
    from ._core import Core

T = TypeVar("T")
X = TypeVar("X", bound="BaseTransaction")

Isolation: TypeAlias = Literal["committed", "uncommitted"]
"""The view of a reader from outside: the items as the last commit left them, or as they are."""

ReturnValues: TypeAlias = Literal["NONE", "ALL_OLD", "ALL_NEW"]
"""The state of the item that a write answers with."""

ItemsPage: TypeAlias = tuple[list[Item], dict[str, Any] | None]
"""Items, and the key to go on from."""

TransactionState: TypeAlias = Literal["pending", "committed", "rolled-back"]

Request: TypeAlias = Mapping[str, Mapping[str, Any]]
"""One operation on one item: an entry of `transact_write_items` or `transact_get_items`, such as
`{"Put": {"TableName": "accounts", "Item": {"id": "Moe", "balance": 100}}}`, with Python's values as boto3's
resources take them."""

TRIES = 10
"""The default number of tries: enough to get past a few others. More tries would hide a hot item."""

DEADLINE = 30.0
"""Seconds. A call may wait ten seconds for others, so this allows for three such waits."""

KEEP_ALIVE = 20.0
"""Seconds: a third of the sixty after which the service takes a transaction for abandoned."""

_NEXT_TRY = "next try"
"""The key under which the id of the next try is derived from that of a try that was rolled back. Every process that
repeats the first one comes to the same next one."""

_CALL_TIMEOUT = 15.0
"""Seconds for one request: the service may wait for other transactions for ten of them."""

_log = logging.getLogger("leasehold")


def derive_transaction_id(namespace: str | uuid.UUID, key: str) -> str:
    """Derives the id of a transaction from a business key, such as the number of an order, for `transact`: a UUID of
    version 8, as in RFC 9562, B.2. `namespace` is a UUID of the application. It is a secret: whoever knows it can
    compute the ids, and an id is the right to add to a transaction and to end it.

    Raises `ValueError` if the namespace is no UUID."""
    prefix = namespace if isinstance(namespace, uuid.UUID) else uuid.UUID(namespace)
    derived = bytearray(hashlib.sha256(prefix.bytes + key.encode()).digest()[:16])
    derived[6] = derived[6] & 0x0F | 0x80
    derived[8] = derived[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(derived)))


class ReadOptions(TypedDict, total=False):
    """The options of a read."""

    projection: str | None
    """The attributes to answer with. Default: all."""
    names: Mapping[str, str] | None
    """The expression's `#names`."""


class QueryOptions(TypedDict, total=False):
    """The options of a query in a transaction, whose values are the key condition's."""

    index_name: str | None
    """An index to find the items in."""
    names: Mapping[str, str] | None
    """The expressions' `#names`."""
    projection: str | None
    """The attributes to answer with. Default: all."""
    forward: bool | None
    """False: by descending sort keys. Default: true."""


class UpdateOptions(TypedDict, total=False):
    """The options of an update, whose values are the expression's."""

    condition: str | None
    """A condition that must hold for the item as it was when the transaction locked it. Raises
    `ConditionFailed`."""
    names: Mapping[str, str] | None
    """The expressions' `#names`."""
    return_values: ReturnValues | None
    """The state of the item to answer with. Default: none."""


class WriteOptions(UpdateOptions, total=False):
    """The options of a write."""

    values: Mapping[str, Value] | None
    """The condition's `:values`."""


class CheckOptions(TypedDict, total=False):
    """The options of a check."""

    values: Mapping[str, Value] | None
    """The condition's `:values`."""
    names: Mapping[str, str] | None
    """The condition's `#names`."""


class ListOptions(TypedDict, total=False):
    """The options of a listing of items."""

    index_name: str | None
    """An index that projects all attributes."""
    key_condition: str | None
    """The key condition of a query. Without it the listing is a scan."""
    filter: str | None
    """A condition for each item."""
    values: Mapping[str, Value] | None
    """The expressions' `:values`."""
    names: Mapping[str, str] | None
    """The expressions' `#names`."""
    projection: str | None
    """The attributes to answer with. Default: all."""
    forward: bool | None
    """False: a query goes backwards. Default: true."""
    page_size: int | None
    """The number of items for each request."""
    isolation: Isolation
    """Default: `committed`."""


@dataclass(frozen=True)
class Participant:
    """An item that takes, or took, part in a transaction."""

    table: str
    key: Item
    operation: Literal["get", "put", "update", "delete", "check"]


@dataclass(frozen=True)
class TransactionStatus:
    """The state of a transaction, as the service knows it."""

    transaction_id: str
    state: TransactionState
    finished: bool
    """Whether all its items are free again: false for a moment after the decision, or until a sweep."""
    reason: str | None
    """The reason of the rollback, for people to read."""
    created_at: float
    """The time of the beginning, in seconds since 1970, as is the next."""
    last_worked_at: float
    requests: tuple[Participant, ...]
    """The participants, in the order in which the items were locked."""

    @classmethod
    def from_wire(cls, answer: Any) -> TransactionStatus:
        return cls(
            transaction_id=answer["transactionId"],
            state=answer["state"],
            finished=answer["finished"],
            reason=answer.get("reason"),
            created_at=answer["createdAtMs"] / 1000,
            last_worked_at=answer["lastWorkedAtMs"] / 1000,
            requests=tuple(
                Participant(request["tableName"], from_item(request["key"]), request["operation"])
                for request in answer["requests"]
            ),
        )


class BaseTransaction:
    """The rules of one transaction."""

    def __init__(
        self,
        core: Core,
        transaction_id: str,
        *,
        begun: bool = False,
        keep_alive: float | None = None,
        capacity: CapacityMeter | None = None,
    ) -> None:
        self._core = core
        self._id = transaction_id
        self._begun = begun
        self._keep_alive = keep_alive
        self._retry_of: str | None = None
        self._calls = _Calls(core.world.new_id()[:8])
        self._last_worked = core.world.now()
        self._kept = False
        self._process = os.getpid()
        self._capacity = capacity
        self.contention: TransactionContended | TransactionRolledBack | None = None
        """The error by which another transaction stopped this one, if it cannot go on."""

    @property
    def id(self) -> str:
        """The id, for `Client.resume_transaction` and `Client.transaction_status`."""
        return self._id

    async def _get(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Item | None:
        members = {"Key": key, "ProjectionExpression": projection, "ExpressionAttributeNames": names}
        return await self._one("Get", table, members)

    async def _query(
        self,
        table: str,
        key_condition: str,
        values: Mapping[str, Value],
        *,
        index_name: str | None = None,
        names: Mapping[str, str] | None = None,
        projection: str | None = None,
        forward: bool | None = None,
    ) -> list[Item]:
        members = {
            "IndexName": index_name,
            "KeyConditionExpression": key_condition,
            "ExpressionAttributeValues": values,
            "ExpressionAttributeNames": names,
            "ProjectionExpression": projection,
            "ScanIndexForward": forward,
        }
        (answer,) = await self._send([_request("Query", table, members)])
        return [from_item(item) for item in answer["items"]]

    async def _write(
        self,
        operation: str,
        table: str,
        members: Mapping[str, object],
        *,
        condition: str | None = None,
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
        return_values: ReturnValues | None = None,
    ) -> Item | None:
        expressions = {
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ReturnValues": return_values,
        }
        return await self._one(operation, table, {**members, **expressions})

    async def _check(
        self,
        table: str,
        key: Mapping[str, Value],
        condition: str,
        *,
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        await self._write("ConditionCheck", table, {"Key": key}, condition=condition, values=values, names=names)

    async def _one(self, operation: str, table: str, members: Mapping[str, object]) -> Item | None:
        return (await self._add([_request(operation, table, members)]))[0]

    async def _add(self, requests: Iterable[Request]) -> list[Item | None]:
        return _answers(await self._send(requests))

    async def _send(self, requests: Iterable[Request]) -> list[Mapping[str, Any]]:
        entries = _entries(requests)
        if not entries:
            return await self._call("add", {"requests": entries}, _list)
        name = self._calls.begin(entries)
        try:
            return await self._call("add", {"requests": entries, "callId": name}, _list)
        except LeaseholdError as error:
            self._calls.fail(entries, name, error)
            raise

    async def _open(self) -> None:
        """Begins, and leaves nothing open if the caller is cancelled meanwhile."""
        try:
            await self._begin()
        except LeaseholdError:
            raise
        except BaseException:
            self._core.in_background(self._undo)
            raise

    async def _begin(self) -> None:
        members = {} if self._retry_of is None else {"retryOf": self._retry_of}
        await self._call("begin", members, _state)
        self._begun = True

    async def _commit(self) -> None:
        for item in await self._call("commit", {"expectedWrites": self._calls.writes}, _overwritten):
            _log.warning(
                "an item of %s was deleted or replaced past the transaction %s, and is not part of its commit",
                item["tableName"],
                self._id,
            )

    async def _rollback(self) -> None:
        await self._post("rollback", {}, _state)

    async def _enter(self) -> None:
        """The start of a block: opens the transaction, and begins to keep it alive."""
        if not self._begun:
            await self._open()
        if self._keep_alive is not None:
            self._kept = True
            self._core.runtime.schedule(self._keep, self._last_worked + self._keep_alive)

    async def _leave(self, error: BaseException | None) -> None:
        """The end of a block: commits, or rolls back where an exception leaves it."""
        self._kept = False
        self._core.runtime.cancel(self._keep)
        if os.getpid() != self._process:
            return  # a child that was forked in the block: the transaction is its parent's
        if error is None:
            await self._settle()
        else:
            await self._core.finish(self._undo)

    async def _settle(self) -> None:
        """Commits, and determines the outcome."""
        try:
            await self._commit()
            return
        except (TransactionContended, TransactionRolledBack) as error:
            contention = error
        except BaseException:
            # The outcome is unknown, or an added request is wrong: a rollback decides in the background.
            self._core.in_background(self._undo)
            raise
        # An abandoned commit may still arrive. A rollback makes certain that the commit has no effect
        # before anything is tried again.
        try:
            await self._rollback()
        except TransactionCommitted:
            return
        except TransactionRolledBack:
            pass
        except LeaseholdError:
            self.contention = None
            raise
        raise contention

    async def _undo(self) -> None:
        """Rolls back, unless the transaction has ended. A failure is logged: a sweeper, or a transaction that
        needs an item, will end it."""
        try:
            await self._rollback()
        except (TransactionCommitted, TransactionRolledBack, TransactionNotFound):
            pass
        except LeaseholdError as failure:
            _log.warning("the transaction %s could not be rolled back: %s", self._id, failure)

    async def _keep(self) -> None:
        """Sends a keep-alive, if one is due."""
        assert self._keep_alive is not None  # noqa: S101
        try:
            if self._kept and self._core.world.now() >= self._last_worked + self._keep_alive:
                await self._add([])
        except Unavailable:
            pass
        except LeaseholdError:
            return  # the next call, or the commit, raises the error
        if self._kept:
            self._core.runtime.schedule(self._keep, self._last_worked + self._keep_alive)

    async def _call(self, action: str, members: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Calls the service, unless the answer is known."""
        if isinstance(self.contention, TransactionRolledBack):
            raise self.contention
        sent = self._core.world.now()
        try:
            answer = await self._post(action, members, read)
        except (TransactionContended, TransactionRolledBack) as error:
            self.contention = error
            raise
        except LeaseholdError:
            self._last_worked = self._core.world.now()  # a pause before the next keep-alive
            raise
        self._last_worked = sent
        # A transaction that met a contended item, and found another way, may be committed.
        self.contention = None
        return answer

    async def _post(self, action: str, members: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        return await _call(self._core, self._id, action, members, read, self._capacity)


class _Calls:
    """The names of a transaction's calls, and what the service should have of them. Safe for several threads."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._number = 0
        self._lock = threading.Lock()
        self._unsettled: list[tuple[list[dict[str, Any]], str, bool]] = []
        self.writes = 0
        """The number of requests other than `Get` and `Query` that were made, and not refused."""

    def begin(self, entries: list[dict[str, Any]]) -> str:
        """Names a call. The repeat of one that was not carried out as a whole has the name of that one."""
        with self._lock:
            for call in self._unsettled:
                requests, name, is_counted = call
                if requests == entries:
                    self._unsettled.remove(call)
                    self._count(entries, 0 if is_counted else 1)
                    return name
            self._count(entries, 1)
            self._number += 1
            return f"{self._handle}-{self._number}"

    def fail(self, entries: list[dict[str, Any]], name: str, error: LeaseholdError) -> None:
        """Keeps the name of a call that may be repeated. Its requests stay counted where nobody knows whether
        they were carried out: a commit is refused then if they were not."""
        is_unknown = isinstance(error, Unavailable)
        with self._lock:
            if not is_unknown:
                self._count(entries, -1)
            if is_unknown or isinstance(error, TransactionContended):
                self._unsettled.append((entries, name, is_unknown))

    def _count(self, entries: list[dict[str, Any]], sign: int) -> None:
        self.writes += sign * sum(entry.keys().isdisjoint(("Get", "Query")) for entry in entries)


async def _call(
    core: Core,
    transaction_id: str,
    action: str,
    members: Mapping[str, Any],
    read: Callable[[Any], T],
    capacity: CapacityMeter | None,
) -> T:
    """Sends one call that may have to wait for other transactions. Repeats it for as long as any other
    operation, after the first try was given up."""
    body = {"transactionId": transaction_id, **members}
    if capacity is not None:
        body["returnConsumedCapacity"] = "TOTAL"

    def counted(answer: Any) -> T:
        found = read(answer)
        if capacity is not None:
            capacity._add(answer)
        return found

    try:
        return await core.repeat(
            lambda _: core.api.post(f"/v1/transactions/{action}", body, _CALL_TIMEOUT, counted),
            deadline=core.world.now() + _CALL_TIMEOUT + OPERATION_BOUND,
        )
    except LeaseholdError as error:
        error.transaction_id = transaction_id
        raise


class BaseTransactionCalls:
    """The rules of a client's calls for transactions and their items."""

    _core: Core

    def _new(self, transaction: type[X], keep_alive: float | None = None, capacity: CapacityMeter | None = None) -> X:
        self._core.check_open()
        if keep_alive is not None and not keep_alive > 0:
            raise InvalidRequest(f"must be above zero, not {keep_alive}", "keep_alive")
        return transaction(self._core, self._core.world.new_id(), keep_alive=keep_alive, capacity=capacity)

    async def _transact(
        self,
        requests: Iterable[Request],
        tries: int,
        deadline: float,
        transaction_id: str | None,
        capacity: CapacityMeter | None,
    ) -> list[Item | None]:
        self._core.check_open()
        members: dict[str, Any] = {"requests": _entries(requests), "commit": True}
        attempts = Tries(self._core, tries, deadline)
        transaction_id, gave_way = transaction_id or self._core.world.new_id(), False
        while True:
            try:
                return _answers(await _call(self._core, transaction_id, "begin", members, _list, capacity))
            except TransactionContended as error:
                # An abandoned earlier try may have been carried out, or may yet be. Only the same id prevents
                # a second effect.
                gave_way = True
                if not await attempts.again(error):
                    raise
            except TransactionRolledBack as error:
                # The end is certain: no request of this id can be carried out any more.
                members["retryOf"] = transaction_id
                transaction_id = derive_transaction_id(transaction_id, _NEXT_TRY)
                if not gave_way and not await attempts.again(error):
                    raise
                gave_way = False

    async def _status(self, transaction_id: str) -> TransactionStatus:
        query = {"id": transaction_id}
        return await self._core.repeat(
            lambda timeout: self._core.api.get("/v1/transaction", query, timeout, TransactionStatus.from_wire)
        )

    async def _read_item(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        isolation: Isolation = "committed",
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Item | None:
        body = {
            "tableName": table,
            "key": to_item(key),
            "projectionExpression": projection,
            "expressionAttributeNames": names,
            "isolation": isolation,
        }
        return await self._items("get", body, _answer)

    async def _read_items(
        self, keys: Iterable[tuple[str, Mapping[str, Value]]], isolation: Isolation
    ) -> list[Item | None]:
        requests = [{"tableName": table, "key": to_item(key)} for table, key in keys]
        body = {"requests": requests, "isolation": isolation}
        return await self._items("get", body, lambda answer: _answers(answer["answers"]))

    def _listing(
        self,
        table: str,
        *,
        index_name: str | None = None,
        key_condition: str | None = None,
        filter: str | None = None,  # noqa: A002
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
        projection: str | None = None,
        forward: bool | None = None,
        page_size: int | None = None,
        isolation: Isolation = "committed",
    ) -> Listing:
        body = {
            "tableName": table,
            "indexName": index_name,
            "keyConditionExpression": key_condition,
            "filterExpression": filter,
            "expressionAttributeValues": None if values is None else to_item(values),
            "expressionAttributeNames": names,
            "projectionExpression": projection,
            "scanIndexForward": forward,
            "limit": whole(page_size, "page_size", 1),
            "isolation": isolation,
        }
        return Listing(partial(self._items, "list", read=_page), body)

    async def _items(self, action: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        return await self._core.repeat(lambda timeout: self._core.api.post(f"/v1/items/{action}", body, timeout, read))


class Listing:
    """A listing of items, page by page."""

    def __init__(self, send: Callable[[Mapping[str, Any]], Awaitable[ItemsPage]], body: dict[str, Any]) -> None:
        self._send = send
        self._body = body
        self.is_over = False

    async def page(self) -> list[Item]:
        """The next page."""
        items, start = await self._send(self._body)
        self._body["exclusiveStartKey"] = start
        self.is_over = start is None
        return items


class Tries:
    """The remaining tries, and their deadline."""

    def __init__(self, core: Core, tries: int, deadline: float) -> None:
        whole(tries, "tries", 1)
        self._core = core
        self._left = tries
        self._until = core.world.now() + deadline
        self._backoff = Backoff(core.world.chance)
        self._before: str | None = None

    def begun(self, transaction: X) -> X:
        """Records an attempt. A retry keeps the age of the one before: of two transactions the older one goes
        first."""
        transaction._retry_of, self._before = self._before, transaction.id
        return transaction

    async def again(self, error: TransactionContended | TransactionRolledBack | None) -> bool:
        """Waits for the next try. Returns False if there is none, or the failure was no conflict."""
        if error is None:
            return False
        self._left -= 1
        pause = self._backoff.pause(error.retry_after)
        if self._left <= 0 or self._core.world.now() + pause >= self._until:
            return False
        await self._core.closed.wait(pause)
        return True


def _request(operation: str, table: str, members: Mapping[str, object]) -> Request:
    given = {name: value for name, value in members.items() if value is not None}
    return {operation: {"TableName": table, **given}}


def _entries(requests: Iterable[Request]) -> list[dict[str, Any]]:
    return [{operation: _members(members) for operation, members in entry.items()} for entry in requests]


def _members(members: Mapping[str, Any]) -> dict[str, Any]:
    typed = ("Key", "Item", "ExpressionAttributeValues")
    return {name: to_item(value) if name in typed else value for name, value in members.items()}


def _answers(answers: Iterable[Mapping[str, Any]]) -> list[Item | None]:
    return [_answer(answer) for answer in answers]


def _answer(answer: Mapping[str, Any]) -> Item | None:
    return from_item(answer["item"]) if "item" in answer else None


def _page(answer: Any) -> ItemsPage:
    return [from_item(item) for item in answer["items"]], answer.get("lastEvaluatedKey")


def _list(answer: Any) -> list[Mapping[str, Any]]:
    answers: list[Mapping[str, Any]] = answer["answers"]
    return answers


def _overwritten(answer: Any) -> list[Mapping[str, Any]]:
    items: list[Mapping[str, Any]] = answer.get("overwritten", [])
    return items


def _state(answer: Any) -> TransactionState:
    state: TransactionState = answer["state"]
    return state
