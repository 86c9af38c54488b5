"""The examples of the README run."""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE, TABLE, Bank, MakeClient, RunPython, finished

BLOCKS = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text("utf-8"), re.DOTALL)


def aws(bank: Bank) -> dict[str, str]:
    """The environment in which AWS's SDK reaches this DynamoDB."""
    return {
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_ENDPOINT_URL_DYNAMODB": bank.dynamodb,
        "STATE_TABLE": TABLE,
    }


@pytest.fixture
def surroundings(service: str, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples use without a definition."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_URL", service)
    for name, value in aws(bank).items():
        monkeypatch.setenv(name, value)
    called: list[Any] = []
    return {"export": lambda **arguments: called.append(arguments), "called": called}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number: int, service: str, bank: Bank, surroundings: dict[str, Any]) -> None:
    if '"accounts"' in BLOCKS[number]:
        service = bank.url
        bank.call("PutItem", {"TableName": TABLE, "Item": {"id": {"S": "Moe"}, "balance": {"N": "130"}}})
    code = BLOCKS[number].replace("http://127.0.0.1:8080", service)
    if "leasehold.aws" in code or "boto3" in code:
        pytest.importorskip("boto3", reason="boto3 is not installed")
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


READ_ONLY = """
    import os, sys

    def refuse(event, arguments):
        if event == "open" and not str(arguments[0]).startswith(("/tmp/", "/dev/")):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise OSError(30, "Read-only file system", arguments[0])

    sys.dont_write_bytecode = True
    sys.addaudithook(refuse)
    try:
        open("anything", "w")
        raise SystemExit("the file system is not read-only")
    except OSError:
        pass
    names = {"export": lambda fencing_token: print("exported", flush=True)}
    exec(sys.argv[1], names)
    print(names["handler"]({}, None))
    """
"""A function's environment: nothing but /tmp can be written to."""


def test_function_works_where_files_are_read_only(
    service: str,
    bank: Bank,
    make_client: MakeClient,
    run_python: RunPython,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed")
    monkeypatch.chdir(tmp_path)
    for name, value in {**aws(bank), "LEASEHOLD_URL": service}.items():
        monkeypatch.setenv(name, value)
    (example,) = (block for block in BLOCKS if "def handler" in block)
    key = f"nightly-export-{uuid.uuid4()}"
    example = example.replace("nightly-export", key)
    dead = make_client().acquire(key, lease=1.5, manual_heartbeats=True).granted()
    assert finished(run_python(READ_ONLY, example)) == "someone else is at it\n"
    item = bank.raw(f"observations of {key}")
    assert item is not None
    seen = json.loads(item["seen"]["S"])[0]
    time.sleep(max(0.0, seen["firstSeenEpochMs"] / 1000 + 1.5 + 1.1 - time.time()))
    assert finished(run_python(READ_ONLY, example)) == "exported\ndone\n", "in another process"
    assert make_client().get(key).state == "released"
    assert dead.lost == "expired"
    assert list(tmp_path.iterdir()) == []


def test_readme_has_examples() -> None:
    assert len(BLOCKS) >= 6
