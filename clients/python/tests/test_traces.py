"""The recorded runs of the machines (clients/vectors/traces), replayed on this package's port."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE

from leasehold._call import (
    Abandon,
    Action,
    Call,
    Done,
    Ended,
    Event,
    Finish,
    Lost,
    Memory,
    Plain,
    Purpose,
    Refused,
    Release,
    Reply,
    Retryable,
    Send,
    Start,
    Terms,
    WakeAt,
    WasSuperseded,
)
from leasehold._numbers import Numbered

FOLDERS = [PACKAGE.parent / "vectors" / "traces"]
if "LEASEHOLD_TRACES" in os.environ:  # other seeds, which the recorder wrote
    FOLDERS.append(Path(os.environ["LEASEHOLD_TRACES"]))

Line = dict[str, Any]


def reply(given: Line) -> Reply:
    match given["type"]:
        case "done":
            return Done(given["leaseMs"], given["found"])
        case "refused":
            return Refused()
        case "lost":
            return Lost()
        case "superseded":
            return WasSuperseded(given["sequence"])
        case "retryable":
            return Retryable(given["retryAfterMs"], given["mayApply"])
    raise AssertionError(given)


def event(given: Line) -> Event[str]:
    match given["type"]:
        case "start":
            return Start(given["request"], given["timeout"])
        case "answer":
            return Ended(given["send"], reply(given["reply"]))
        case "unanswered":
            return Ended(given["send"], given["cause"])
        case "tick" | "cancel" | "taken" as name:
            result: Event[str] = name
            return result
    raise AssertionError(given)


def what(done: Plain[str] | Numbered[str] | Release) -> Line:
    match done:
        case Plain(request):
            return {"type": "plain", "request": request}
        case Release(key):
            return {"type": "release", "key": key}
        case _:
            return {
                "type": "numbered",
                "request": done.content,
                "sequence": done.sequence,
                "requestId": done.request_id,
                "firstSent": done.sent,
            }


def action(done: Action[str]) -> Line:
    match done:
        case Send(send, content, timeout):
            return {"type": "send", "send": send, "what": what(content), "timeout": timeout}
        case Abandon(send):
            return {"type": "abandon", "send": send}
        case WakeAt(time):
            return {"type": "wake-at", "time": time}
        case Finish(outcome, send):
            return {"type": "finish", "outcome": {"type": outcome, "send": send}}
    return {"type": done}


def state(call: Call[str]) -> Line:
    shown: Line = {"name": call.state, "last": call.numbers.last, "mayHold": call.may_hold}
    shown["open"] = call.numbers.open and call.numbers.open.sequence
    if call.state in ("asking", "leaving", "releasing"):
        shown["send"] = call.send
    if call.state in ("paused", "release-paused", "doubting"):
        shown["until"] = call.until
    return shown


class Draws:
    """The draws of one line, each of which is made once, in order."""

    def __init__(self, drawn: list[Line]) -> None:
        self.left = list(drawn)

    def fraction(self, purpose: Purpose) -> float:
        return float(self._next(purpose)["fraction"])

    def id(self, purpose: Purpose) -> str:
        return str(self._next(purpose)["id"])

    def _next(self, purpose: Purpose) -> Line:
        drawn = self.left.pop(0)
        assert drawn["purpose"] == purpose
        return drawn


def files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted(folder.glob("*.jsonl"))]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_port_takes_the_steps_of_the_trace(path: Path) -> None:
    call: Call[str] | None = None
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        line: Line = json.loads(text)
        if "terms" in line:
            terms = line["terms"]
            given = Terms(terms["longestMs"], terms["boundMs"], terms["leaseMs"], terms["delayMs"])
            call = Call(given, line["keys"])
            continue
        assert call is not None
        draws, memory = Draws(line["draws"]), Memory(line["answered"])
        branch, actions = call.step(memory, event(line["event"]), line["at"], draws)
        step = {"branch": branch, "actions": [action(done) for done in actions], "state": state(call)}
        expected = {member: line[member] for member in step}
        assert step == expected, f"{path.name}, line {number}: {line['call']} at {line['at']}"
        assert not draws.left, f"{path.name}, line {number}: a draw too few"
