"""Transactions of the synchronous client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ._bodies import check_body, finished
from ._capacity import CapacityMeter, ConsumedCapacity
from ._client import explicit_options
from ._runtime import run
from ._transactions import (
    DEADLINE,
    KEEP_ALIVE,
    TRIES,
    BaseTransaction,
    BaseTransactionCalls,
    CheckOptions,
    Isolation,
    ListOptions,
    Participant,
    QueryOptions,
    ReadOptions,
    Request,
    ReturnValues,
    TransactionState,
    TransactionStatus,
    Tries,
    UpdateOptions,
    WriteOptions,
    derive_transaction_id,
)
from .model import Item, Value

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = [
    "CapacityMeter",
    "ConsumedCapacity",
    "Isolation",
    "Participant",
    "Request",
    "ReturnValues",
    "Transaction",
    "TransactionCalls",
    "TransactionState",
    "TransactionStatus",
    "derive_transaction_id",
]

T = TypeVar("T")


class Transaction(BaseTransaction):
    """A transaction that is open, or is to be opened by `with`.

    The end of a `with` block commits the transaction; an exception rolls it back, and is raised unchanged.
    After a conflict with other transactions, the methods raise `TransactionRolledBack` (begin another one) or
    `TransactionContended` (repeat the call, or roll back). Safe to use from several threads.
    """

    @explicit_options(BaseTransaction._get)
    def get(self, table: str, key: Mapping[str, Value], **options: Unpack[ReadOptions]) -> Item | None:
        """Locks an item and reads it; `None` if there is none. No other transaction changes or creates the
        item before this one ends."""
        return run(self._get(table, key, **options))

    @explicit_options(BaseTransaction._query)
    def query(
        self, table: str, key_condition: str, values: Mapping[str, Value], **options: Unpack[QueryOptions]
    ) -> list[Item]:
        """Locks the items that match a key condition, at most 100, and reads them. No other transaction changes them
        before this one ends. Other items that match may come later: docs/transactions.md says how to prevent
        that."""
        return run(self._query(table, key_condition, values, **options))

    @explicit_options(BaseTransaction._write)
    def put(self, table: str, item: Mapping[str, Value], **options: Unpack[WriteOptions]) -> Item | None:
        """Puts an item, in place of the present one. `condition` must hold for the item as it was when the
        transaction locked it. If it does not, the transaction is rolled back, and `ConditionFailed` is
        raised."""
        return run(self._write("Put", table, {"Item": item}, **options))

    @explicit_options(BaseTransaction._write)
    def update(
        self,
        table: str,
        key: Mapping[str, Value],
        expression: str,
        values: Mapping[str, Value] | None = None,
        **options: Unpack[UpdateOptions],
    ) -> Item | None:
        """Changes an item, or creates it."""
        members = {"Key": key, "UpdateExpression": expression}
        return run(self._write("Update", table, members, values=values, **options))

    @explicit_options(BaseTransaction._write)
    def delete(self, table: str, key: Mapping[str, Value], **options: Unpack[WriteOptions]) -> Item | None:
        """Deletes an item when the transaction is committed."""
        return run(self._write("Delete", table, {"Key": key}, **options))

    @explicit_options(BaseTransaction._check)
    def check(self, table: str, key: Mapping[str, Value], condition: str, **options: Unpack[CheckOptions]) -> None:
        """Locks an item and checks a condition."""
        run(self._check(table, key, condition, **options))

    def add(self, requests: Iterable[Request]) -> list[Item | None]:
        """Locks the items of these requests, at most 1000, in one order for all transactions. Applies the
        requests provisionally. Returns the requested items, in the order of the requests.

        Raises `TransactionContended`, `TransactionRolledBack`, `TransactionCommitted`, `TransactionNotFound`.
        `ConditionFailed`, and an `InvalidRequest` of DynamoDB's, roll the transaction back.
        """
        return run(self._add(requests))

    def keep_alive(self) -> None:
        """Tells the service that the transaction is alive."""
        run(self._add([]))

    def begin(self) -> None:
        """Opens the transaction. May be repeated."""
        run(self._begin())

    def commit(self) -> None:
        """Commits all changes. May be repeated, and should be after `Unavailable`, when the outcome is
        unknown. Raises `TransactionRolledBack` where no change was committed."""
        run(self._commit())

    def rollback(self) -> None:
        """Rolls all changes back. May be repeated. Raises `TransactionCommitted`."""
        run(self._rollback())

    def __enter__(self) -> Self:
        run(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._leave(error))


class TransactionCalls(BaseTransactionCalls):
    """The calls of a client for transactions and their items."""

    def transaction(
        self,
        body: Callable[[Transaction], T],
        *,
        tries: int = TRIES,
        deadline: float = DEADLINE,
        keep_alive: float | None = KEEP_ALIVE,
        capacity: CapacityMeter | None = None,
    ) -> T:
        """Calls `body` in a transaction, commits it, and returns what `body` returned.

        An exception of `body` rolls the transaction back, and is raised unchanged. After a conflict with
        another transaction, the transaction is rolled back, and `body` is called again in a new one, at most
        `tries` times, and not after `deadline` seconds, 0 or more. The changes of items happen once; other effects of
        `body` may happen several times. After the last try, raises `TransactionContended` or
        `TransactionRolledBack`. `Unavailable` from the commit means that the outcome is unknown; its
        `transaction_id` names the transaction.

        `keep_alive` and `capacity` are those of `begin_transaction`.
        """
        check_body(body, "body", "function")
        attempts = Tries(self._core, tries, deadline)
        while True:
            transaction = attempts.begun(self._new(Transaction, keep_alive, capacity))
            try:
                with transaction as tx:
                    return finished(body, body(tx))
            except Exception:
                if not run(attempts.again(transaction.contention)):
                    raise

    def transact(
        self,
        requests: Iterable[Request],
        *,
        tries: int = TRIES,
        deadline: float = DEADLINE,
        transaction_id: str | None = None,
        capacity: CapacityMeter | None = None,
    ) -> list[Item | None]:
        """Carries out all requests in one call, at most 1000, together or not at all. Returns the requested
        items, in the order of the requests. Retries after conflicts with other transactions.

        With a `transaction_id`, such as `derive_transaction_id` derives from a business key, the same requests are
        carried out once, whichever processes make the call, for as long as the service keeps the outcome.

        Raises the errors of `Transaction.add`. `TransactionCommitted` means that the requests were carried
        out, but the answer, with the items of the writes, was lost.
        """
        return run(self._transact(requests, tries, deadline, transaction_id, capacity))

    def begin_transaction(
        self, *, keep_alive: float | None = KEEP_ALIVE, capacity: CapacityMeter | None = None
    ) -> Transaction:
        """Opens a transaction that is committed by hand, here or in another process. Outside of a block only its
        calls keep it alive.

        `with client.begin_transaction() as tx:` commits it at the end of the block, and rolls it back if an exception
        leaves the block. A block cannot be run again: after a conflict with another transaction, it raises
        `TransactionRolledBack` or `TransactionContended`. See `transaction`.

        `keep_alive`: idle seconds, above 0, after which the client sends a keep-alive in a block; `None`: never. The
        default is a third of the service's default limit. Another transaction that needs an item waits for one second
        of silence. A value of 0.3 defends the items against the other transaction, costs requests, and makes the
        other one wait. `capacity` adds up what the calls consume.
        """
        transaction = self._new(Transaction, keep_alive, capacity)
        run(transaction._open())
        return transaction

    def resume_transaction(self, transaction_id: str, *, capacity: CapacityMeter | None = None) -> Transaction:
        """Returns a transaction that another process opened. Sends nothing."""
        return Transaction(self._core, transaction_id, begun=True, capacity=capacity)

    def transaction_status(self, transaction_id: str) -> TransactionStatus:
        """Reads the state of a transaction, also long after its end. Raises `TransactionNotFound`."""
        return run(self._status(transaction_id))

    # Reading from outside

    @explicit_options(BaseTransactionCalls._read_item)
    def read_item(
        self,
        table: str,
        key: Mapping[str, Value],
        *,
        isolation: Isolation = "committed",
        **options: Unpack[ReadOptions],
    ) -> Item | None:
        """Reads one item outside of transactions."""
        return run(self._read_item(table, key, isolation=isolation, **options))

    def read_items(
        self, keys: Iterable[tuple[str, Mapping[str, Value]]], *, isolation: Isolation = "committed"
    ) -> list[Item | None]:
        """Reads items, given as pairs of table and key, in their order: at most 100, each once. Only a
        transaction reads them all at one moment."""
        return run(self._read_items(keys, isolation))

    @explicit_options(BaseTransactionCalls._listing)
    def list_items(self, table: str, **options: Unpack[ListOptions]) -> Iterator[Item]:
        """Yields all items that a query (with `key_condition`) or a scan finds, page by page.
        `index_name`: an index that projects all attributes. The listing is no snapshot: docs/transactions.md
        lists what it can miss."""
        listing = self._listing(table, **options)
        while not listing.is_over:
            yield from run(listing.page())
