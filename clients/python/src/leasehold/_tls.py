"""Private authorities, and certificates of clients."""

from __future__ import annotations

import os
import ssl
from typing import TypeAlias

from .errors import InvalidRequest

Path: TypeAlias = "str | os.PathLike[str]"

ClientCert: TypeAlias = "Path | tuple[Path, Path]"
"""The file of a certificate with its key; or the two files."""


def tls_context(ca_file: Path | None, client_cert: ClientCert | None) -> ssl.SSLContext:
    """The context of connections: trusts the system's authorities, or those of the file alone."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{str(ca_file)!r} has no certificates in PEM: {error}", "ca_file") from error
    if client_cert is not None:
        cert, key = client_cert if isinstance(client_cert, tuple) else (client_cert, None)
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{str(cert)!r} has no certificate with its key: {error}", "client_cert") from error
    return context
