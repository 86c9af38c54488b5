"""The real service in memory, for the tests of programs that use it.

    with leasehold.testing.serve() as service:
        client = Client(service.url)

With pytest, `pytest_plugins = ["leasehold.testing"]` in `conftest.py` brings the fixtures `leasehold_service`, one for
the whole run, and `leasehold_client`, one for each test, whose locks are released at its end.

The program `leasehold` is found by `LEASEHOLD_BIN`, or in the `PATH`: `pip install leasehold-cli`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from .client import Client
from .errors import LeaseholdError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Service", "serve"]

_STOPS_WITHIN = 10.0


class Service:
    """A service of one test run. Its locks are gone when it stops."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self._process = process
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stops the service. May be repeated."""
        atexit.unregister(self.stop)
        self._process.terminate()
        try:
            self._process.communicate(timeout=_STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(*arguments: str) -> Service:
    """Starts the service in memory, on a free port of this machine. `arguments` are further ones of
    `leasehold serve`. Raises `LeaseholdError` where there is no such program, or where it does not start."""
    program = os.environ.get("LEASEHOLD_BIN") or shutil.which("leasehold")
    if program is None:
        raise LeaseholdError("there is no program leasehold: pip install leasehold-cli, or set LEASEHOLD_BIN")
    try:
        process = subprocess.Popen(  # noqa: S603
            [program, "serve", "--memory", "--listen", "127.0.0.1:0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise LeaseholdError(f"{program} cannot be run: {error}") from error
    assert process.stdout is not None  # noqa: S101
    first = process.stdout.readline()
    if "listens on" not in first:
        process.kill()
        _, said = process.communicate()
        raise LeaseholdError(f"{program} serve did not start: {(first + said).strip()}")
    return Service(process, first.split()[-1])


try:
    import pytest
except ModuleNotFoundError:
    pass
else:

    @pytest.fixture(scope="session")
    def leasehold_service() -> Iterator[Service]:
        """The service in memory, one for the whole run."""
        with serve() as service:
            yield service

    @pytest.fixture
    def leasehold_client(leasehold_service: Service) -> Iterator[Client]:
        """A client of the service in memory, which is closed at the end of the test."""
        with Client(leasehold_service.url) as client:
            yield client
