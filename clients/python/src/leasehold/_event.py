"""Keys from an event."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from .errors import InvalidRequest

KeyOf: TypeAlias = "str | Callable[[Any, Any], str]"
"""The key: a template such as `orders/{detail.id}`, or a function of event and context."""

_TEMPLATE = re.compile(r"(?:[^{}]|\{[^{}]+\})+")
_PLACE = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"[^.\[\]]+(?:\[\d+\])*(?:\.[^.\[\]]+(?:\[\d+\])*)*")
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def key_reader(key: KeyOf) -> Callable[[Any, Any], str]:
    """Returns the function that reads the key from event and context. Raises `InvalidRequest` for a template
    that is none."""
    if callable(key):
        return key
    places = _PLACE.findall(key)
    if not _TEMPLATE.fullmatch(key) or not all(_PATH.fullmatch(place) for place in places):
        raise InvalidRequest(f"{key!r} is no template: a path in braces is {{name.name[0]}}", "key")
    return lambda event, _: _PLACE.sub(lambda place: _text_at(event, place[1]), key)


def _text_at(event: Any, path: str) -> str:
    value = event
    for index, name in _PART.findall(path):
        if index:
            inside = isinstance(value, Sequence) and not isinstance(value, str) and int(index) < len(value)
            value = value[int(index)] if inside else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None:
            raise InvalidRequest(f"the event has no {path}", "key")
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise InvalidRequest(f"{path} of the event is neither a text nor a whole number", "key")
    return str(value)
