"""Converts between Python's values and DynamoDB JSON, as boto3 does: numbers are `int` or `Decimal`, never
`float`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Set
from decimal import Clamped, Context, Decimal, DecimalException, Inexact, Overflow, Rounded, Underflow
from typing import Any

from .errors import InvalidRequest
from .model import Item, Value

_NUMBERS = Context(
    prec=38, Emin=-128, Emax=126, traps=[Clamped, Overflow, Inexact, Rounded, Underflow]
)  # the range of DynamoDB, which rounds or refuses other numbers


def to_item(item: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the DynamoDB JSON of an item. Raises `InvalidRequest` for a value that DynamoDB has no type
    for."""
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"must be a mapping, not {type(item).__name__}", "item")
    return {_name(name): to_value(value) for name, value in item.items()}


def from_item(item: Mapping[str, Any]) -> Item:
    """Returns the item of DynamoDB JSON: numbers are `Decimal`s, binary values `bytes`, sets sets."""
    return {name: from_value(value) for name, value in item.items()}


def to_value(value: Value) -> dict[str, Any]:
    """Returns the DynamoDB JSON of one value."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | Decimal():
            return {"N": _number(value)}
        case str():
            return {"S": value}
        case bytes() | bytearray() | memoryview():
            return {"B": _base64(value)}
        case Mapping():
            return {"M": to_item(value)}
        case list() | tuple():
            return {"L": [to_value(member) for member in value]}
        case Set():
            return _set(value)
        case float():
            raise InvalidRequest("a float is no exact number: use Decimal, as Decimal('0.1')", "item")
    raise InvalidRequest(f"DynamoDB has no type for {type(value).__name__}", "item")


def from_value(value: Mapping[str, Any]) -> Value:
    """Returns the value of DynamoDB JSON. Raises `ValueError` for anything else."""
    ((kind, content),) = value.items()
    match kind:
        case "NULL":
            return None
        case "BOOL" | "S":
            return content
        case "N":
            return _decimal(content)
        case "B":
            return _bytes(content)
        case "M":
            return from_item(content)
        case "L":
            return [from_value(member) for member in content]
        case "SS":
            return set(content)
        case "NS":
            return {_decimal(member) for member in content}
        case "BS":
            return {_bytes(member) for member in content}
    raise ValueError(f"no type of DynamoDB's: {kind}")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"an attribute's name is a text, not {name!r}", "item")
    return name


def _number(value: int | Decimal) -> str:
    try:
        number = _NUMBERS.create_decimal(value)
    except DecimalException:
        raise InvalidRequest(f"DynamoDB has 38 digits, and exponents to 125, for {value}", "item") from None
    if not number.is_finite():
        raise InvalidRequest(f"DynamoDB cannot store {value}", "item")
    return str(number)


def _set(members: Set[Any]) -> dict[str, Any]:
    texts = [member for member in members if isinstance(member, str)]
    blobs = [member for member in members if isinstance(member, bytes)]
    numbers = [m for m in members if isinstance(m, int | Decimal) and not isinstance(m, bool)]
    if members and len(texts) == len(members):
        return {"SS": sorted(texts)}
    if members and len(numbers) == len(members):
        return {"NS": [_number(number) for number in sorted(numbers)]}
    if members and len(blobs) == len(members):
        return {"BS": [_base64(blob) for blob in sorted(blobs)]}
    raise InvalidRequest("a set has texts, or numbers, or bytes, all of one kind, and is not empty", "item")


def _base64(content: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _decimal(content: str) -> Decimal:
    try:
        return Decimal(content)
    except DecimalException as error:
        raise ValueError(f"no number: {content!r}") from error
