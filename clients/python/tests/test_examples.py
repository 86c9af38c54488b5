"""The functions of examples/lambda, each with its event, sent twice."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from conftest import PACKAGE, MakeClient
from test_handlers import Context

EXAMPLES = PACKAGE.parent.parent / "examples" / "lambda"


@pytest.fixture
def event(name: str) -> Any:
    return json.loads((EXAMPLES / "events" / f"{name}.json").read_text())


@pytest.fixture
def handler(name: str, service: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LEASEHOLD_URL", service)
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.handler
    module.client.close()


@pytest.mark.parametrize("name", ["sqs"])
def test_record_that_is_done_does_not_come_again(handler: Any, event: Any, capsys: Any) -> None:
    assert handler(event, Context()) == {"batchItemFailures": []}
    assert capsys.readouterr().out.startswith("ships order 1 under ")


@pytest.mark.parametrize("name", ["schedule", "kinesis"])
def test_event_that_comes_twice_is_done_once(handler: Any, event: Any, capsys: Any) -> None:
    first, printed = handler(event, Context()), capsys.readouterr().out
    assert handler(event, Context()) == first
    assert first in ("2026-11-24T02:00:00Z", {"sums": 1})
    assert capsys.readouterr().out == ""
    assert printed in ("reports 2026-11-24T02:00:00Z\n", "")


@pytest.mark.parametrize("name", ["s3"])
def test_object_has_one_writer_at_a_time(handler: Any, event: Any, make_client: MakeClient) -> None:
    first = handler(event, Context())
    assert first["thumbnail"] == "moe.png"
    assert make_client().get("objects/pictures/moe.png").state == "released"
    assert handler(event, Context())["token"] > first["token"]
