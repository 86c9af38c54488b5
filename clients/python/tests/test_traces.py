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
from leasehold._holder import (
    AbandonBeat,
    AtRisk,
    BeatEnded,
    FinishRenew,
    GiveBack,
    Grant,
    Holder,
    HolderTerms,
    Leave,
    Renew,
    Renewed,
    Returned,
    Revoke,
    SendBeat,
    TakeOver,
    TellLost,
    TokenSuperseded,
    Untold,
    WarnAt,
    WasLost,
)
from leasehold._holder import Action as HolderAction
from leasehold._holder import Event as HolderEvent
from leasehold._holder import Reply as HolderReply
from leasehold._holder import WakeAt as HolderWakeAt
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


def holder_of(line: Line) -> Holder[str]:
    terms, grant = line["terms"], line["grant"]
    given = HolderTerms(terms["longestMs"], terms["beats"], terms["delayMs"], terms["holdsOn"], terms["maxHoldMs"])
    return Holder(given, Grant(grant["sent"], grant["leaseMs"], grant["token"], grant["sequence"]))


def holder_reply(given: Line) -> HolderReply:
    match given["type"]:
        case "renewed":
            return Renewed(given["leaseMs"], given["token"], given["wanted"])
        case "refused":
            return Refused()
        case "lost":
            return WasLost(given["reason"])
        case "superseded":
            return TokenSuperseded(given["sequence"], given["token"])
        case "retryable":
            return Retryable(given["retryAfterMs"], given["mayApply"])
    raise AssertionError(given)


def holder_event(given: Line) -> HolderEvent[str]:
    match given["type"]:
        case "renew":
            return Renew(given["call"], given["change"], given["leaseMs"])
        case "leave":
            return Leave(given["call"])
        case "answer":
            return BeatEnded(given["send"], holder_reply(given["reply"]))
        case "unanswered":
            return BeatEnded(given["send"], given["cause"])
        case "warn-at":
            return WarnAt(given["leftMs"])
        case "untold":
            return Untold(given["sent"], given["mayApply"], given["stores"])
        case "returned":
            end = given["end"]
            return Returned(WasLost(end["reason"]) if end["type"] == "lost" else end["type"])
        case "revoke":
            return Revoke(given["reason"])
        case "start" | "tick" | "release" | "detach" | "suspended" | "forked" as name:
            result: HolderEvent[str] = name
            return result
    raise AssertionError(given)


def holder_action(done: HolderAction[str]) -> Line:
    match done:
        case SendBeat(send, beat, timeout):
            shown = {
                "leaseMs": beat.content.lease,
                "change": beat.content.change,
                "sequence": beat.sequence,
                "requestId": beat.request_id,
                "firstSent": beat.sent,
            }
            return {"type": "send", "send": send, "beat": shown, "timeout": timeout}
        case AbandonBeat(send):
            return {"type": "abandon", "send": send}
        case HolderWakeAt(time):
            return {"type": "wake-at", "time": time}
        case TakeOver(send):
            return {"type": "renewed", "send": send}
        case FinishRenew(call, outcome, send):
            shown = {"type": outcome} if send is None else {"type": outcome, "send": send}
            return {"type": "finish", "call": call, "outcome": shown}
        case AtRisk(risk, left):
            return {"type": "at-risk", "risk": risk, "leftMs": left}
        case TellLost(reason):
            return {"type": "lost", "reason": reason}
        case GiveBack(lease, patience):
            return {"type": "give-back", "leaseMs": lease, "patienceMs": patience}


def holder_state(holder: Holder[str]) -> Line:
    return {
        "name": holder.state,
        "until": holder.until,
        "leaseMs": holder.lease,
        "last": holder.numbers.last,
        "open": holder.numbers.open and holder.numbers.open.sequence,
        "underWay": holder.under_way,
        "wanted": holder.wanted,
        "trouble": holder.trouble,
    }


def belief(holder: Holder[str], now: int) -> Line:
    return {
        "valid": holder.valid(now),
        "remainingMs": holder.remaining(now),
        "loss": holder.loss(now),
        "inDoubt": holder.in_doubt,
    }


def replay_call(call: Call[str], line: Line, draws: Draws) -> Line:
    branch, actions = call.step(Memory(line["answered"]), event(line["event"]), line["at"], draws)
    return {"branch": branch, "actions": [action(done) for done in actions], "state": state(call)}


def replay_holder(holder: Holder[str], line: Line, draws: Draws) -> Line:
    if "event" not in line:
        return {"belief": belief(holder, line["at"])}
    branch, actions = holder.step(holder_event(line["event"]), line["at"], draws)
    step: Line = {"branch": branch, "actions": [holder_action(done) for done in actions]}
    return step | {"state": holder_state(holder), "belief": belief(holder, line["at"])}


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_port_takes_the_steps_of_the_trace(path: Path) -> None:
    call: Call[str] | None = None
    holder: Holder[str] | None = None
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        line: Line = json.loads(text)
        if "grant" in line:
            holder = holder_of(line)
            continue
        if "terms" in line:
            terms = line["terms"]
            given = Terms(terms["longestMs"], terms["boundMs"], terms["leaseMs"], terms["delayMs"])
            call = Call(given, line["keys"])
            continue
        draws = Draws(line.get("draws", []))
        if "holder" in line:
            assert holder is not None
            step = replay_holder(holder, line, draws)
        else:
            assert call is not None
            step = replay_call(call, line, draws)
        expected = {member: line[member] for member in step}
        name = line.get("holder") or line["call"]
        assert step == expected, f"{path.name}, line {number}: {name} at {line['at']}"
        assert not draws.left, f"{path.name}, line {number}: a draw too few"
