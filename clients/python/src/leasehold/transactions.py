"""Transactions over DynamoDB items: the rules T1 to T7 of every client."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ._dynamodb import from_item, to_item
from ._runtime import run
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
    from typing_extensions import Self

    from ._core import Core

T = TypeVar("T")

Isolation: TypeAlias = Literal["committed", "uncommitted"]
"""The view of a reader from outside: the items as the last commit left them, or as they are."""

ReturnValues: TypeAlias = Literal["NONE", "ALL_OLD", "ALL_NEW"]
"""The state of the item that a write answers with."""

TransactionState: TypeAlias = Literal["pending", "committed", "rolled-back"]

Request: TypeAlias = Mapping[str, Mapping[str, Any]]
"""One operation on one item: an entry of `transact_write_items` or `transact_get_items`, such as
`{"Put": {"TableName": "accounts", "Item": {"id": "Moe", "balance": 100}}}`, with Python's values as boto3's
resources take them."""

TRIES = 10
"""Enough to get past a few others; more would only hide that an item is wanted by too many."""

DEADLINE = 30.0
"""Seconds. A call may wait ten seconds for others, so this allows for three such waits."""

KEEP_ALIVE = 20.0
"""Seconds: a third of the sixty after which the service takes a transaction for abandoned."""

_CALL_TIMEOUT = 15.0
"""Seconds for one request: the service may wait for other transactions for ten of them."""

_log = logging.getLogger("leasehold")


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
    """Why it was rolled back, for people to read."""
    created_at: float
    """Seconds since 1970, as is the next."""
    last_worked_at: float
    requests: tuple[Participant, ...]
    """In the order in which the items were locked."""

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


class Transaction:
    """A transaction that is open, or is to be opened by `with`.

    The end of a `with` block commits the transaction; an exception rolls it back and passes through. Where
    other transactions got in the way, its methods raise `TransactionRolledBack` (begin another one) or
    `TransactionContended` (repeat the call, or roll back). Safe to use from several threads.
    """

    def __init__(
        self, core: Core, transaction_id: str, *, begun: bool = False, keep_alive: float | None = None
    ) -> None:
        self._core = core
        self._id = transaction_id
        self._begun = begun
        self._keep_alive = keep_alive
        self._retry_of: str | None = None
        self._last_worked = core.world.now()
        self._kept = False
        self._process = os.getpid()
        self.contention: TransactionContended | TransactionRolledBack | None = None
        """The error by which another transaction stopped this one, if it cannot go on."""

    @property
    def id(self) -> str:
        """The id, for `Client.resume_transaction` and `Client.transaction_status`."""
        return self._id

    # The operations

    def get(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Item | None:
        """Locks an item and reads it; `None` if there is none. Nobody else changes it, or makes it, before
        the end of the transaction."""
        return self._one(
            "Get", table, Key=key, ProjectionExpression=projection, ExpressionAttributeNames=names
        )

    def put(
        self,
        table: str,
        item: Mapping[str, Value],
        *,
        condition: str | None = None,
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
        return_values: ReturnValues | None = None,
    ) -> Item | None:
        """Puts an item, in place of the present one. `condition` must hold of the item as it was when the
        transaction locked it. Where it does not, raises `ConditionFailed`, and all is rolled back."""
        return self._write("Put", table, condition, values, names, return_values, Item=item)

    def update(
        self,
        table: str,
        key: Mapping[str, Value],
        expression: str,
        values: Mapping[str, Value] | None = None,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        return_values: ReturnValues | None = None,
    ) -> Item | None:
        """Changes an item, or creates it."""
        return self._write(
            "Update", table, condition, values, names, return_values, Key=key, UpdateExpression=expression
        )

    def delete(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        condition: str | None = None,
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
        return_values: ReturnValues | None = None,
    ) -> Item | None:
        """Deletes an item when the transaction is committed."""
        return self._write("Delete", table, condition, values, names, return_values, Key=key)

    def check(
        self,
        table: str,
        key: Mapping[str, Value],
        condition: str,
        *,
        values: Mapping[str, Value] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Locks an item and checks a condition."""
        self._write("ConditionCheck", table, condition, values, names, None, Key=key)

    def add(self, requests: Iterable[Request]) -> list[Item | None]:
        """Locks the items of these requests, at most 1000, in one order for all transactions. Changes the
        items within this transaction. Returns the items that were asked for, in the order of the requests.

        Raises `TransactionContended`, `TransactionRolledBack`, `TransactionCommitted`, `TransactionNotFound`.
        `ConditionFailed`, and an `InvalidRequest` that DynamoDB found, roll the transaction back.
        """
        return _answers(self._call("add", {"requests": [_entry(request) for request in requests]}, _list))

    def keep_alive(self) -> None:
        """Tells the service that the transaction is alive."""
        self.add([])

    # Its ends

    def begin(self) -> None:
        """Opens the transaction. May be repeated."""
        members = {} if self._retry_of is None else {"retryOf": self._retry_of}
        self._call("begin", members, _state)
        self._begun = True

    def commit(self) -> None:
        """Commits all changes. May be repeated, and should be after `Unavailable`, when nobody knows. Raises
        `TransactionRolledBack` where no change was committed."""
        self._call("commit", {}, _state)

    def rollback(self) -> None:
        """Undoes all changes. May be repeated. Raises `TransactionCommitted`."""
        self._post("rollback", {}, _state)

    def __enter__(self) -> Self:
        if not self._begun:
            self.begin()
        if self._keep_alive is not None:
            self._kept = True
            self._core.runtime.schedule(self._keep, self._last_worked + self._keep_alive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept = False
        self._core.runtime.cancel(self._keep)
        if os.getpid() != self._process:
            return  # a child that was forked in the block: the transaction is its parent's
        if error is None:
            self._settle()
            return
        try:
            self.rollback()
        except (TransactionRolledBack, TransactionNotFound):
            pass
        except LeaseholdError as failure:
            _log.warning("the transaction %s could not be rolled back: %s", self._id, failure)

    def _settle(self) -> None:
        """Commits, and finds out the outcome."""
        try:
            self.commit()
            return
        except (TransactionContended, TransactionRolledBack) as error:
            contention = error
        except LeaseholdError:
            # Nobody knows, or an added request is wrong: a rollback decides in the background.
            self._core.runtime.schedule(self._give_up, self._core.world.now(), at_exit=True)
            raise
        # A commit that was given up may still arrive. A rollback makes certain that the commit has no effect
        # before anything is tried again.
        try:
            self.rollback()
        except TransactionCommitted:
            return
        except TransactionRolledBack:
            pass
        except LeaseholdError:
            self.contention = None
            raise
        raise contention

    async def _give_up(self) -> None:
        try:
            self.rollback()
        except (TransactionCommitted, TransactionRolledBack, TransactionNotFound):
            pass
        except LeaseholdError as failure:
            _log.warning("the transaction %s is left to a sweeper: %s", self._id, failure)

    async def _keep(self) -> None:
        """Sends a sign of life, if one is due."""
        assert self._keep_alive is not None  # noqa: S101
        try:
            if self._kept and self._core.world.now() >= self._last_worked + self._keep_alive:
                self.keep_alive()
        except Unavailable:
            pass
        except LeaseholdError:
            return  # the next call, or the commit, raises the error
        if self._kept:
            self._core.runtime.schedule(self._keep, self._last_worked + self._keep_alive)

    def _write(
        self,
        operation: str,
        table: str,
        condition: str | None,
        values: Mapping[str, Value] | None,
        names: Mapping[str, str] | None,
        return_values: ReturnValues | None,
        **members: object,
    ) -> Item | None:
        return self._one(
            operation,
            table,
            **members,
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
            ReturnValues=return_values,
        )

    def _one(self, operation: str, table: str, **members: object) -> Item | None:
        given = {name: value for name, value in members.items() if value is not None}
        return self.add([{operation: {"TableName": table, **given}}])[0]

    def _call(self, action: str, members: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Calls the service, unless the answer is known."""
        if isinstance(self.contention, TransactionRolledBack):
            raise self.contention
        sent = self._core.world.now()
        try:
            answer = self._post(action, members, read)
        except (TransactionContended, TransactionRolledBack) as error:
            self.contention = error
            raise
        except LeaseholdError:
            self._last_worked = self._core.world.now()  # a pause before the next sign of life
            raise
        self._last_worked = sent
        # A body that met a contended item, and found another way, may be committed.
        self.contention = None
        return answer

    def _post(self, action: str, members: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        return call(self._core, self._id, action, members, read)


def call(
    core: Core, transaction_id: str, action: str, members: Mapping[str, Any], read: Callable[[Any], T]
) -> T:
    """Sends one call that may have to wait for other transactions. Repeats it for as long as any other
    operation, after the first try was given up."""
    body = {"transactionId": transaction_id, **members}
    try:
        return run(
            core.repeat(
                lambda _: core.api.post(f"/v1/transactions/{action}", body, _CALL_TIMEOUT, read),
                deadline=core.world.now() + _CALL_TIMEOUT + OPERATION_BOUND,
            )
        )
    except LeaseholdError as error:
        error.transaction_id = transaction_id
        raise


class TransactionCalls:
    """The calls of a client for transactions and their items."""

    _core: Core

    def transaction(self, *, keep_alive: float | None = KEEP_ALIVE) -> Transaction:
        """`with client.transaction() as tx:` opens a transaction, commits it at the end of the block, and
        rolls it back if an exception leaves it.

        A block cannot be run again: where another transaction gets in the way, the block raises
        `TransactionRolledBack` or `TransactionContended`. See `run_transaction`.

        `keep_alive`: seconds of silence after which the client sends a sign of life; `None`: never. The
        default is a third of the service's default limit. Another transaction that needs an item waits for
        one second of silence. 0.3 defends the items against it, costs requests, and makes the other one wait.
        """
        self._core.check_open()
        _check_keep_alive(keep_alive)
        return Transaction(self._core, self._core.world.new_id(), keep_alive=keep_alive)

    def run_transaction(
        self,
        body: Callable[[Transaction], T],
        *,
        tries: int = TRIES,
        deadline: float = DEADLINE,
        keep_alive: float | None = KEEP_ALIVE,
    ) -> T:
        """Calls `body` in a transaction, commits it, and returns what `body` returned.

        An exception of `body` rolls all back, and is raised. Where another transaction got in the way, all
        is rolled back, and `body` is called again in a new transaction, at most `tries` times, and not after
        `deadline` seconds. Its changes of items happen once; its other effects may happen several times.
        After the last try, raises `TransactionContended` or `TransactionRolledBack`. `Unavailable` from the
        commit means that nobody knows the outcome; its `transaction_id` names the transaction.
        """
        attempts = _Tries(self._core, tries, deadline)
        before: str | None = None
        while True:
            transaction = self.transaction(keep_alive=keep_alive)
            # A retry keeps the age of the attempt before: of two transactions the older one goes first.
            transaction._retry_of, before = before, transaction.id
            try:
                with transaction as tx:
                    return body(tx)
            except Exception:
                if transaction.contention is None or not attempts.again(transaction.contention):
                    raise

    def transact(
        self, requests: Iterable[Request], *, tries: int = TRIES, deadline: float = DEADLINE
    ) -> list[Item | None]:
        """Carries out all requests in one call, at most 1000, together or not at all. Returns the items that
        were asked for, in their order. Retries where other transactions get in the way.

        Raises the errors of `Transaction.add`. `TransactionCommitted` means that the requests were carried
        out, but the answer was lost, and with it the items that the writes were to return.
        """
        self._core.check_open()
        members: dict[str, Any] = {"requests": [_entry(request) for request in requests], "commit": True}
        attempts = _Tries(self._core, tries, deadline)
        transaction_id, gave_way = self._core.world.new_id(), False
        while True:
            try:
                return _answers(call(self._core, transaction_id, "begin", members, _list))
            except TransactionContended as error:
                # An earlier try that was given up may have been carried out, or may still be. Only the same
                # id keeps the requests from being carried out twice.
                gave_way = True
                if not attempts.again(error):
                    raise
            except TransactionRolledBack as error:
                # A certain end: nothing of this id can be carried out any more.
                members["retryOf"] = transaction_id
                transaction_id = self._core.world.new_id()
                if not gave_way and not attempts.again(error):
                    raise
                gave_way = False

    def begin_transaction(self) -> Transaction:
        """Opens a transaction that is to be committed by hand, here or elsewhere. Only its calls keep it
        alive."""
        self._core.check_open()
        transaction = Transaction(self._core, self._core.world.new_id())
        transaction.begin()
        return transaction

    def resume_transaction(self, transaction_id: str) -> Transaction:
        """Returns a transaction that was opened elsewhere. Sends nothing."""
        return Transaction(self._core, transaction_id, begun=True)

    def transaction_status(self, transaction_id: str) -> TransactionStatus:
        """Reads the state of a transaction, also long after its end. Raises `TransactionNotFound`."""
        return run(
            self._core.repeat(
                lambda timeout: self._core.api.get(
                    "/v1/transaction", {"id": transaction_id}, timeout, TransactionStatus.from_wire
                )
            )
        )

    # Reading from outside

    def read_item(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        isolation: Isolation = "committed",
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Item | None:
        """Reads one item from outside of transactions."""
        body = {
            "tableName": table,
            "key": to_item(key),
            "projectionExpression": projection,
            "expressionAttributeNames": names,
            "isolation": isolation,
        }
        return run(
            self._core.repeat(lambda timeout: self._core.api.post("/v1/items/get", body, timeout, _answer))
        )

    def read_items(
        self, keys: Iterable[tuple[str, Mapping[str, Value]]], *, isolation: Isolation = "committed"
    ) -> list[Item | None]:
        """Reads items, given as pairs of table and key, in their order: at most 100, each once. Only a
        transaction reads them all at one moment."""
        requests = [{"tableName": table, "key": to_item(key)} for table, key in keys]
        body = {"requests": requests, "isolation": isolation}
        return run(
            self._core.repeat(
                lambda timeout: self._core.api.post(
                    "/v1/items/get", body, timeout, lambda answer: _answers(answer["answers"])
                )
            )
        )

    def list_items(
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
    ) -> Iterator[Item]:
        """Yields all items that a query (with `key_condition`) or a scan finds, fetched page by page.
        `index_name`: an index that projects all attributes. The listing is no snapshot: docs/transactions.md
        lists what it can miss."""
        body: dict[str, Any] = {
            "tableName": table,
            "indexName": index_name,
            "keyConditionExpression": key_condition,
            "filterExpression": filter,
            "expressionAttributeValues": None if values is None else to_item(values),
            "expressionAttributeNames": names,
            "projectionExpression": projection,
            "scanIndexForward": forward,
            "limit": page_size,
            "isolation": isolation,
        }
        while True:
            items, start = run(
                self._core.repeat(lambda timeout: self._core.api.post("/v1/items/list", body, timeout, _page))
            )
            yield from items
            if start is None:
                return
            body["exclusiveStartKey"] = start


class _Tries:
    """The tries that are left, and their deadline."""

    def __init__(self, core: Core, tries: int, deadline: float) -> None:
        self._core = core
        self._left = tries
        self._until = core.world.now() + deadline
        self._backoff = Backoff(core.world.chance)

    def again(self, error: TransactionContended | TransactionRolledBack) -> bool:
        """Waits for the next try; false if there is none."""
        self._left -= 1
        pause = self._backoff.pause(error.retry_after)
        if self._left <= 0 or self._core.world.now() + pause >= self._until:
            return False
        run(self._core.closed.wait(pause))
        return True


def _check_keep_alive(keep_alive: float | None) -> None:
    if keep_alive is not None and not keep_alive > 0:
        raise InvalidRequest(f"must be above zero, not {keep_alive}", "keep_alive")


def _entry(request: Request) -> dict[str, Any]:
    return {operation: _members(members) for operation, members in request.items()}


def _members(members: Mapping[str, Any]) -> dict[str, Any]:
    typed = ("Key", "Item", "ExpressionAttributeValues")
    return {name: to_item(value) if name in typed else value for name, value in members.items()}


def _answers(answers: Iterable[Mapping[str, Any]]) -> list[Item | None]:
    return [_answer(answer) for answer in answers]


def _answer(answer: Mapping[str, Any]) -> Item | None:
    return from_item(answer["item"]) if "item" in answer else None


def _page(answer: Any) -> tuple[list[Item], dict[str, Any] | None]:
    return [from_item(item) for item in answer["items"]], answer.get("lastEvaluatedKey")


def _list(answer: Any) -> list[Mapping[str, Any]]:
    answers: list[Mapping[str, Any]] = answer["answers"]
    return answers


def _state(answer: Any) -> TransactionState:
    state: TransactionState = answer["state"]
    return state
