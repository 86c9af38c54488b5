"""Payloads as requests carry them."""

from __future__ import annotations

import base64
from types import NoneType

from .errors import InvalidRequest


def payload_text(data: bytes | str | None) -> str | None:
    """Sends text as text, so that people can read it in the table."""
    return data if isinstance(data, str) else None


def payload_base64(data: bytes | str | None) -> str | None:
    """Sends bytes as base64."""
    if not isinstance(data, (bytes, bytearray, str, NoneType)):
        raise InvalidRequest(f"must be bytes or a text, not {type(data).__name__}", "data")
    return None if data is None or isinstance(data, str) else base64.b64encode(data).decode("ascii")
