"""The functions that a client calls under a lock, for an occurrence, under a lead, or in a transaction.

Work that begins after its function has returned is done under none of them. A function whose work does is refused
before anything is sent, where that shows. Where it does not, the result is refused, before the occurrence is completed
or the transaction committed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Literal, TypeAlias, TypeVar

from .errors import InvalidRequest

T = TypeVar("T")

Kind: TypeAlias = Literal["function", "coroutine function", "generator function", "async generator function"]

_AT_ONCE = "let it do all its work before it returns"

_LAZY = (GeneratorType, AsyncGeneratorType, map, filter)
"""What runs code of the caller's when it is read. Other iterators, such as an open file, have nothing to do."""


def check_body(function: Callable[..., Any], field: str, *takes: Kind) -> Kind | None:
    """Refuses a function of another kind than the caller takes. Returns its kind, or `None` if that does not show."""
    if not callable(function):
        raise InvalidRequest(f"must be a function, not {function!r}", field)
    kind = _kind_of(function)
    if kind is None or kind in takes:
        return kind
    if kind in ("function", "coroutine function"):
        wanted = "leasehold.Client takes functions, and leasehold.aio.Client coroutine functions"
        raise InvalidRequest(f"{_name_of(function)} is of the other kind: {wanted}", field)
    article = "an" if kind.startswith("a") else "a"
    reason = f"is {article} {kind}, whose work begins after it has returned"
    raise InvalidRequest(f"{_name_of(function)} {reason}: {_AT_ONCE}", field)


def finished(function: Callable[..., Any], result: T) -> T:
    """Returns the result of a function, unless work is still to be done for it."""
    if inspect.isawaitable(result) or isinstance(result, _LAZY):
        if inspect.iscoroutine(result):
            result.close()
        kind = type(result).__name__
        raise InvalidRequest(f"{_name_of(function)} returned a {kind}, whose work is still to be done: {_AT_ONCE}")
    return result


async def awaited(function: Callable[..., Any], started: Awaitable[T]) -> T:
    """Awaits what a function of asynchronous code returned, and returns its result as `finished` does."""
    if not inspect.isawaitable(started):
        finished(function, started)
        raise InvalidRequest(
            f"{_name_of(function)} returned a {type(started).__name__}: let it be a coroutine function"
        )
    return finished(function, await started)


def takes_guard(function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter `guard`."""
    try:
        return "guard" in inspect.signature(function).parameters
    except ValueError:  # some functions in C have none
        return False


def key_of(function: Callable[..., Any]) -> str:
    """The key of a job that has none."""
    if not hasattr(function, "__qualname__"):
        raise InvalidRequest(f"is needed, for a {type(function).__name__} has no name", "key")
    return f"{function.__module__}.{function.__qualname__}"


def _kind_of(function: Callable[..., Any]) -> Kind | None:
    """The kind of a function, a method, a partial or a callable object. It does not show where anything may be
    returned: by a lambda, a wrapper, an object, or a function in C."""
    inner = _inner(function)
    called: Any = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__
    for candidate in (inner, called):
        if inspect.iscoroutinefunction(candidate):
            return "coroutine function"
        if inspect.isgeneratorfunction(candidate):
            return "generator function"
        if inspect.isasyncgenfunction(candidate):
            return "async generator function"
    is_plain = inspect.isfunction(inner) or inspect.ismethod(inner)
    shows = is_plain and inner.__name__ != "<lambda>" and not hasattr(inner, "__wrapped__")
    return "function" if shows else None


def _inner(function: Callable[..., Any]) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
    return name
