"""The examples of the README run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE, TABLE, Bank

BLOCKS = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture
def surroundings(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples take for granted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("LEASEHOLD_URL", service)
    called: list[Any] = []
    return {"export": lambda **arguments: called.append(arguments), "called": called}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, service: str, bank: Bank, surroundings: dict[str, Any]) -> None:
    if '"accounts"' in BLOCKS[number]:
        service = bank.url
        bank.call("PutItem", {"TableName": TABLE, "Item": {"id": {"S": "Moe"}, "balance": {"N": "130"}}})
    code = BLOCKS[number].replace("http://127.0.0.1:8080", service)
    if "leasehold.aws" in code:
        pytest.importorskip("botocore", reason="the extra leasehold[aws] is not installed")
    try:
        exec(compile(code, f"README.md, example {number}", "exec"), surroundings)
        if "handler" in surroundings:
            assert surroundings["handler"]({}, None) == "done"
    finally:
        client = surroundings.get("client")
        if client is not None:
            client.close()
    assert bool(surroundings["called"]) == ("export(" in code)
    assert surroundings.get("left", 30) == 30, "of a transfer of 100"


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 6
