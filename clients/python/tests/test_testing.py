"""The service in memory for users' own tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import RunPython, finished

from leasehold import Client, LeaseholdError, testing

SUITE = """
from leasehold import Held

def test_one(leasehold_client):
    leasehold_client.acquire("job").granted()  # and the end of the test releases it

def test_other(leasehold_client, leasehold_service):
    assert leasehold_service.url.startswith("http://127.0.0.1:")
    assert leasehold_client.try_acquire("job")
"""


def test_service_starts_and_stops_by_one_call() -> None:
    with testing.serve() as service, Client(service.url) as client, client.lock("job") as guard:
        assert guard.valid
    service.stop()
    with pytest.raises(LeaseholdError):
        Client(service.url).try_acquire("job")


def test_fixtures_serve_a_suite_of_a_user(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["leasehold.testing"]\n')
    (tmp_path / "test_user.py").write_text(SUITE)
    code = "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))"
    assert "2 passed" in finished(run_python(code, str(tmp_path)))


def test_missing_program_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEASEHOLD_BIN", str(tmp_path / "missing"))
    with pytest.raises(LeaseholdError, match="cannot be run"):
        testing.serve()
    monkeypatch.delenv("LEASEHOLD_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LeaseholdError, match="pip install leasehold-cli"):
        testing.serve()
    monkeypatch.setenv("LEASEHOLD_BIN", sys.executable)
    with pytest.raises(LeaseholdError, match="did not start"):
        testing.serve()
