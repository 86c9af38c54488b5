"""The asynchronous client with the methods of the synchronous one, so that both have the same tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio.to_thread
from anyio.from_thread import BlockingPortal

import leasehold
from leasehold import aio


class Bridge:
    """An asynchronous client, guard or handle, used from the threads of a test."""

    def __init__(self, portal: BlockingPortal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return getattr(leasehold, type(self._inner).__name__)

    def __eq__(self, other: object) -> bool:
        return self._inner is getattr(other, "_inner", other)

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return self._portal.call(repr, self._inner)

    def __getattr__(self, name: str) -> Any:
        value = self._portal.call(getattr, self._inner, name)
        if name.startswith("_") or not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            return self._portal.call(self._call, value, arguments, named)

        return call

    async def _call(self, function: Any, arguments: Any, named: Any) -> Any:
        result = function(*arguments, **named)
        if inspect.isawaitable(result):
            result = await result
        if hasattr(result, "__aiter__"):
            return iter([member async for member in result])
        is_inner = type(result).__name__ in aio.__all__
        return Bridge(self._portal, result) if is_inner else result

    def lock(self, key: str, **options: Any) -> Any:
        return self._block(self._inner.lock, key, **options)

    def lock_all(self, keys: Any, **options: Any) -> Any:
        return self._block(self._inner.lock_all, keys, **options)

    def hold(self, *arguments: Any, **options: Any) -> Any:
        return self._block(self._inner.hold, *arguments, **options)

    @contextmanager
    def _block(self, block: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        # The body runs in a thread of the test, which no task can cancel.
        made = self._portal.call(lambda: block(*arguments, cancel_on_loss=False, **options))
        with self._portal.wrap_async_context_manager(made) as guard:
            yield Bridge(self._portal, guard)

    def transaction(self, body: Callable[[Any], Any], **options: Any) -> Any:
        async def asynchronous(tx: aio.Transaction) -> Any:
            return await anyio.to_thread.run_sync(body, Bridge(self._portal, tx))

        return self._portal.call(partial(self._inner.transaction, asynchronous, **options))

    def __enter__(self) -> Bridge:
        self._portal.call(self._inner.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._inner.__aexit__, *error)
