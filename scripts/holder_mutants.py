#!/usr/bin/env python3
"""Drops one clause after the other of the holder, in one language, and replays the traces: each must fail.

    scripts/holder_mutants.py python [PYTHON]     PYTHON: the interpreter of the client's environment
    scripts/holder_mutants.py typescript          after `npm run typecheck` in clients/typescript
    scripts/holder_mutants.py rust                the crate leasehold-client-core, alone

The machine has the same clauses in each language, line for line. A clause that no trace needs is one that a port may
lack. `--show N`: only the mutant of that number.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = {
    "python": "clients/python/src/leasehold/_holder.py",
    "typescript": "clients/typescript/src/holder.ts",
    "rust": "shared/leasehold-client-core/src/holder.rs",
}


class Mutant(NamedTuple):
    """A clause, and what stands in its place, in each language. None: the language has no such clause."""

    name: str
    python: tuple[str, str] | None
    typescript: tuple[str, str] | None
    rust: tuple[str, str] | None


MUTANTS = [
    Mutant(
        "a loss by the clock is told at the next step",
        ("        over = self._ends(now, actions)\n", "        over = None\n"),
        ("const over = this.#ends(now, actions);", "const over = undefined;"),
        ("let over = self.ends(now, &mut actions);", "let over = None;"),
    ),
    Mutant(
        "a loss by a refusal is told in the same step",
        ("        self._ends(now, actions)  # a refusal", "        pass  # a refusal"),
        ("belief past the lease.\n    this.#ends(now, actions);\n", "belief past the lease.\n"),
        ("belief past the lease.\n        self.ends(now, &mut actions);\n", "belief past the lease.\n"),
    ),
    Mutant(
        "the longest hold ends",
        ('return "max-hold" if self._hold_ends is not None and now >= self._hold_ends else None', "return None"),
        ('return now >= this.#holdEnds ? "max-hold" : undefined;', "return undefined;"),
        ("self.hold_ends.filter(|end| now >= *end).map(|_| LossReason::MaxHold)", "None"),
    ),
    Mutant(
        "an outage is believed through",
        (" and (self._faith is None or now >= self._faith)", ""),
        (" && now >= this.#faith)", ")"),
        (" && self.faith.is_none_or(|faith| now >= faith)", ""),
    ),
    Mutant(
        "faith ends",
        ("(self._faith is None or now >= self._faith)", "self._faith is None"),
        ("now >= this.#faith)", "this.#faith === -Infinity)"),
        ("self.faith.is_none_or(|faith| now >= faith)", "self.faith.is_none()"),
    ),
    Mutant(
        "faith ends to the millisecond",
        ("now >= self._faith)", "now > self._faith)"),
        ("now >= this.#faith)", "now > this.#faith)"),
        ("is_none_or(|faith| now >= faith)", "is_none_or(|faith| now > faith)"),
    ),
    Mutant(
        "nothing is believed after a suspension",
        (" and self._suspended is None and self._over(now) is None", " and self._over(now) is None"),
        (" && this.#suspended === undefined && this.#over(now)", " && this.#over(now)"),
        (" && self.suspended.is_none() && self.over(now)", " && self.over(now)"),
    ),
    Mutant(
        "the clock is asked for belief",
        (" and self._suspended is None and self._over(now) is None", " and self._suspended is None"),
        (" && this.#suspended === undefined && this.#over(now) === undefined", " && this.#suspended === undefined"),
        (" && self.suspended.is_none() && self.over(now).is_none()", " && self.suspended.is_none()"),
    ),
    Mutant(
        "the clock is asked for the loss",
        ('return self._over(now) if self.state == "held" else self._reason', "return self._reason"),
        ('return this.#state === "held" ? this.#over(now) : this.#reason;', "return this.#reason;"),
        ("State::Held => self.over(now),", "State::Held => None,"),
    ),
    Mutant(
        "doubt follows a suspension",
        ('return self.state == "held" and self._suspended is not None', 'return self.state == "held"'),
        ('return this.#state === "held" && this.#suspended !== undefined;', 'return this.#state === "held";'),
        ("self.state == State::Held && self.suspended.is_some()", "self.state == State::Held"),
    ),
    Mutant(
        "doubt ends with the hold",
        ('return self.state == "held" and self._suspended is not None', "return self._suspended is not None"),
        ('return this.#state === "held" && this.#suspended !== undefined;', "return this.#suspended !== undefined;"),
        ("self.state == State::Held && self.suspended.is_some()", "self.suspended.is_some()"),
    ),
    Mutant(
        "the longest hold bounds the rest",
        ("self.until if self._hold_ends is None else min(self.until, self._hold_ends)", "self.until"),
        ("Math.min(this.until, this.#holdEnds) - now", "this.until - now"),
        ("self.hold_ends.map_or(self.until, |end| self.until.min(end))", "self.until"),
    ),
    Mutant(
        "one heartbeat is under way",
        ('                if self.under_way is not None:\n                    return "queued"\n', ""),
        ('        if (this.underWay !== undefined) return "queued";\n', ""),
        (
            "if self.under_way.is_some() {\n                    return Branch::Queued;\n                }\n",
            "",
        ),
    ),
    Mutant(
        "the last caller by hand leaves no heartbeat",
        ('        if not left and self.terms.beats == "manual":\n            self._due = None\n', ""),
        ('    if (left.length === 0 && this.terms.beats === "manual") this.#due = undefined;\n', ""),
        ("self.renewals.is_empty() && self.terms.beats == Beats::Manual {", "false {"),
    ),
    Mutant(
        "another caller by hand keeps its heartbeat",
        ('if not left and self.terms.beats == "manual":', 'if self.terms.beats == "manual":'),
        ('if (left.length === 0 && this.terms.beats === "manual")', 'if (this.terms.beats === "manual")'),
        (
            "if self.renewals.is_empty() && self.terms.beats == Beats::Manual {",
            "if self.terms.beats == Beats::Manual {",
        ),
    ),
    Mutant(
        "heartbeats go on after the last caller",
        ('if not left and self.terms.beats == "manual":', "if not left:"),
        ('if (left.length === 0 && this.terms.beats === "manual")', "if (left.length === 0)"),
        ("if self.renewals.is_empty() && self.terms.beats == Beats::Manual {", "if self.renewals.is_empty() {"),
    ),
    Mutant(
        "an end belongs to the send under way",
        ("            case BeatEnded(send, end) if self.under_way == send:", "            case BeatEnded(send, end):"),
        ('        if (this.underWay !== event.send) return "stale";\n', ""),
        ("Event::Answer { send, reply } if self.under_way == Some(send) =>", "Event::Answer { send, reply } =>"),
    ),
    Mutant(
        "a suspension names its last number",
        ("                self._suspended = self.numbers.last\n", ""),
        ("        this.#suspended = this.numbers.last;\n", ""),
        ("                self.suspended = Some(self.turns.last());\n", ""),
    ),
    Mutant(
        "a heartbeat follows a suspension",
        ('if self.under_way is None and self.terms.beats != "manual":', "if False:"),
        ('if (this.underWay === undefined && this.terms.beats !== "manual")', "if (false)"),
        ("if self.under_way.is_none() && self.terms.beats != Beats::Manual {", "if false {"),
    ),
    Mutant(
        "the caller by hand sends it",
        ('if self.under_way is None and self.terms.beats != "manual":', "if self.under_way is None:"),
        ('if (this.underWay === undefined && this.terms.beats !== "manual")', "if (this.underWay === undefined)"),
        ("if self.under_way.is_none() && self.terms.beats != Beats::Manual {", "if self.under_way.is_none() {"),
    ),
    Mutant(
        "a heartbeat under way is enough",
        ('if self.under_way is None and self.terms.beats != "manual":', 'if self.terms.beats != "manual":'),
        ('if (this.underWay === undefined && this.terms.beats !== "manual")', 'if (this.terms.beats !== "manual")'),
        (
            "if self.under_way.is_none() && self.terms.beats != Beats::Manual {",
            "if self.terms.beats != Beats::Manual {",
        ),
    ),
    Mutant(
        "a risk is told once",
        ("            if not risk.told and now", "            if now"),
        ("if (risk.isTold || now <", "if (now <"),
        ("if !self.risks[index].is_told && now", "if now"),
    ),
    Mutant(
        "no risk is told past the end",
        ("if left > 0:  # after", "if True:  # after"),
        ("if (left <= 0) continue;", ""),
        ("if !left.is_zero() {", "{"),
    ),
    Mutant(
        "somebody waits",
        ("                self.wanted = self.wanted or wanted\n", ""),
        ("        this.isWanted ||= end.wanted;\n", ""),
        ("                self.is_wanted |= wanted;\n", ""),
    ),
    Mutant(
        "a mark stays",
        ("self.wanted = self.wanted or wanted", "self.wanted = wanted"),
        ("this.isWanted ||= end.wanted;", "this.isWanted = end.wanted;"),
        ("self.is_wanted |= wanted;", "self.is_wanted = wanted;"),
    ),
    Mutant(
        "another token is a ghost",
        ("                if token != self.token:\n", "                if False:\n"),
        ("    if (token !== this.token) {", "    if (false) {"),
        ("                if token != self.token {", "                if false {"),
    ),
    Mutant(
        "a later number brings belief back",
        (" and beat.sequence <= self._suspended", ""),
        (" && turn.sequence <= this.#suspended", ""),
        ("self.suspended.is_some_and(|last| beat.sequence <= last)", "self.suspended.is_some()"),
    ),
    Mutant(
        "an answer may be too late",
        ("                if now - beat.sent >= self.terms.believed(lease):", "                if False:"),
        ("if (now - turn.firstSent >= believedOf(this.terms, lease)) {", "if (false) {"),
        ("if now.saturating_sub(beat.first_sent) >= self.terms.believed(lease) {", "if false {"),
    ),
    Mutant(
        "an answer is too late to the millisecond",
        ("now - beat.sent >= self.terms.believed(lease)", "now - beat.sent > self.terms.believed(lease)"),
        ("now - turn.firstSent >= believedOf(", "now - turn.firstSent > believedOf("),
        ("now.saturating_sub(beat.first_sent) >= self", "now.saturating_sub(beat.first_sent) > self"),
    ),
    Mutant(
        "the delay makes an answer late",
        ("now - beat.sent >= self.terms.believed(lease)", "now - beat.sent >= lease"),
        ("now - turn.firstSent >= believedOf(this.terms, lease)", "now - turn.firstSent >= lease"),
        (">= self.terms.believed(lease) {", ">= lease {"),
    ),
    Mutant(
        "a late answer is trouble",
        ("                    self.trouble = send\n                    self._again", "                    self._again"),
        ("      this.trouble = send;\n      this.#again", "      this.#again"),
        (
            "                    self.trouble = Some(send);\n                    self.again",
            "                    self.again",
        ),
    ),
    Mutant(
        "a lease counts from its first sending",
        ("                self._renewed(int(beat.sent), lease)", "                self._renewed(now, lease)"),
        ("this.#renewed(turn.firstSent, lease);", "this.#renewed(now, lease);"),
        ("self.renewed(beat.first_sent, lease);", "self.renewed(now, lease);"),
    ),
    Mutant(
        "a renewal follows a success",
        (
            "                if not self._renewals:\n                    self._next_beat",
            "                if True:\n                    self._next_beat",
        ),
        ("if (this.#renewals.length === 0) {\n      this.#nextBeat", "if (true) {\n      this.#nextBeat"),
        (
            "if self.renewals.is_empty() {\n                    self.next_beat",
            "if true {\n                    self.next_beat",
        ),
    ),
    Mutant(
        "a number follows the superseding one",
        ("                self.numbers.ended(sequence)\n", '                self.numbers.ended("told")\n'),
        ("this.numbers.ended(end.sequence);", 'this.numbers.ended("told");'),
        ("self.turns.ended(Ending::Superseded { sequence });", "self.turns.ended(Ending::Told); let _ = sequence;"),
    ),
    Mutant(
        "a superseding row has the token",
        ("                if token is not None and token != self.token:\n", "                if False:\n"),
        ("if (end.token !== undefined && end.token !== this.token) {", "if (false) {"),
        ("if token.is_some_and(|token| token != self.token) {", "if false && token.is_some() {"),
    ),
    Mutant(
        "an answer may tell no token",
        ("if token is not None and token != self.token:", "if token != self.token:"),
        ("if (end.token !== undefined && end.token !== this.token) {", "if (end.token !== this.token) {"),
        ("if token.is_some_and(|token| token != self.token) {", "if token != Some(self.token) {"),
    ),
    Mutant(
        "a refusal ends faith",
        (
            " self.trouble, self._faith, self._renumbered = send, None, False",
            " self.trouble, self._renumbered = send, False",
        ),
        ("        this.#faith = -Infinity;\n        this.#isRenumbered", "        this.#isRenumbered"),
        (
            "(self.trouble, self.faith, self.is_renumbered) = (Some(send), None, false);",
            "(self.trouble, self.is_renumbered) = (Some(send), false);",
        ),
    ),
    Mutant(
        "a refusal is no answer about the number",
        (" self.trouble, self._faith, self._renumbered = send, None, False", " self.trouble, self._faith = send, None"),
        ("        this.#isRenumbered = false;\n        const wasWanted", "        const wasWanted"),
        (
            "(self.trouble, self.faith, self.is_renumbered) = (Some(send), None, false);",
            "(self.trouble, self.faith) = (Some(send), None);",
        ),
    ),
    Mutant(
        "a refusal is trouble",
        (
            " self.trouble, self._faith, self._renumbered = send, None, False",
            " self._faith, self._renumbered = None, False",
        ),
        ("        this.trouble = send;\n        this.#faith", "        this.#faith"),
        (
            "(self.trouble, self.faith, self.is_renumbered) = (Some(send), None, false);",
            "(self.faith, self.is_renumbered) = (None, false);",
        ),
    ),
    Mutant(
        "a refused caller is told",
        ("                was_wanted = self._finish(", "                was_wanted = False and self._finish("),
        ("const wasWanted = this.#finish(", "const wasWanted = false && this.#finish("),
        ("let was_wanted = self.finish(", "let was_wanted = false && self.finish("),
    ),
    Mutant(
        "an answer may leave a request open",
        ('self.numbers.ended("may-apply" if may_apply else "untold")', 'self.numbers.ended("untold")'),
        ('this.numbers.ended(end.mayApply ? "may-apply" : "untold");', 'this.numbers.ended("untold");'),
        (
            "self.turns.ended(Ending::Untold { may_apply });",
            "self.turns.ended(Ending::Untold { may_apply: may_apply && false });",
        ),
    ),
    Mutant(
        "so may its lack",
        ('"may-apply" if end in ("cut-off", "timed-out") else "untold"', '"untold"'),
        ('end === "cut-off" || end === "timed-out" ? "may-apply" : "untold"', '"untold"'),
        ("may_apply: cause.may_apply() }", "may_apply: cause.may_apply() && false }"),
    ),
    Mutant(
        "a failure is trouble",
        ("        self.trouble, self._renumbered = send, False\n", "        self._renumbered = False\n"),
        (
            "    this.trouble = send;\n    this.#isRenumbered = false;\n    const isOver",
            "    this.#isRenumbered = false;\n    const isOver",
        ),
        ("(self.trouble, self.is_renumbered) = (Some(send), false);", "self.is_renumbered = false;"),
    ),
    Mutant(
        "a failure is no answer about the number",
        ("        self.trouble, self._renumbered = send, False\n", "        self.trouble = send\n"),
        (
            "    this.trouble = send;\n    this.#isRenumbered = false;\n    const isOver",
            "    this.trouble = send;\n    const isOver",
        ),
        ("(self.trouble, self.is_renumbered) = (Some(send), false);", "self.trouble = Some(send);"),
    ),
    Mutant(
        "callers do not wait for the end of an outage",
        ("        if over:  # callers do not wait", "        if False:  # callers do not wait"),
        ("if (isOver) this.#finishAll(", "if (false) this.#finishAll("),
        ("        if is_over {\n", "        if false {\n"),
    ),
    Mutant(
        "an outage outlives the lease to the millisecond",
        ("        over = now >= self.until\n", "        over = now > self.until\n"),
        ("const isOver = now >= this.until;", "const isOver = now > this.until;"),
        ("let is_over = now >= self.until;", "let is_over = now > self.until;"),
    ),
    Mutant(
        "a failure brings faith",
        ('        self._hold_on(now)\n        return "held-on"', '        return "held-on"'),
        ('    this.#holdOn(now);\n    return isOver ? "held-on"', '    return isOver ? "held-on"'),
        ("        self.hold_on(now);\n        if is_over", "        if is_over"),
    ),
    Mutant(
        "a success takes the trouble away",
        (
            "        self.trouble, self._faith, self._suspended = None, None, None\n",
            "        self._faith, self._suspended = None, None\n",
        ),
        ("    this.trouble = undefined;\n    this.#faith", "    this.#faith"),
        (
            "(self.trouble, self.faith, self.suspended) = (None, None, None);",
            "(self.faith, self.suspended) = (None, None);",
        ),
    ),
    Mutant(
        "a success ends faith",
        (
            "        self.trouble, self._faith, self._suspended = None, None, None\n",
            "        self.trouble, self._suspended = None, None\n",
        ),
        ("    this.#faith = -Infinity;\n    this.#suspended = undefined;", "    this.#suspended = undefined;"),
        (
            "(self.trouble, self.faith, self.suspended) = (None, None, None);",
            "(self.trouble, self.suspended) = (None, None);",
        ),
    ),
    Mutant(
        "a success ends the doubt",
        (
            "        self.trouble, self._faith, self._suspended = None, None, None\n",
            "        self.trouble, self._faith = None, None\n",
        ),
        ("    this.#suspended = undefined;\n    this.#failures = 0;", "    this.#failures = 0;"),
        (
            "(self.trouble, self.faith, self.suspended) = (None, None, None);",
            "(self.trouble, self.faith) = (None, None);",
        ),
    ),
    Mutant(
        "a success forgets failures",
        ("        self._failures, self._renumbered = 0, False\n", "        self._renumbered = False\n"),
        (
            "    this.#failures = 0;\n    this.#isRenumbered = false;\n    for",
            "    this.#isRenumbered = false;\n    for",
        ),
        ("(self.failures, self.is_renumbered) = (0, false);", "self.is_renumbered = false;"),
    ),
    Mutant(
        "a success is no answer about the number",
        ("        self._failures, self._renumbered = 0, False\n", "        self._failures = 0\n"),
        ("    this.#failures = 0;\n    this.#isRenumbered = false;\n    for", "    this.#failures = 0;\n    for"),
        ("(self.failures, self.is_renumbered) = (0, false);", "self.failures = 0;"),
    ),
    Mutant(
        "a risk is told for each lease",
        ("            risk.told = False\n", "            pass\n"),
        ("for (const risk of this.#risks) risk.isTold = false;", ""),
        ("            risk.is_told = false;\n", "            let _ = risk;\n"),
    ),
    Mutant(
        "an interval fits a shortened lease",
        ("        interval = min(interval, longest_heartbeat_interval_ms(believed))\n", ""),
        ("Math.floor(Math.min(interval, longestHeartbeatInterval(believed)))", "Math.floor(interval)"),
        ("whole(interval.min(longest_heartbeat_interval(believed)))", "whole(interval)"),
    ),
    Mutant(
        "two answers about numbers bring a pause",
        ("        if self._renumbered:\n", "        if False:\n"),
        ("    if (this.#isRenumbered) {", "    if (false) {"),
        ("        if self.is_renumbered {\n", "        if false {\n"),
    ),
    Mutant(
        "the pause brings faith",
        (
            "            self._pause(0, now, chance)\n            self._hold_on(now)\n",
            "            self._pause(0, now, chance)\n",
        ),
        ("      this.#pause(0, now, chance);\n      this.#holdOn(now);\n", "      this.#pause(0, now, chance);\n"),
        (
            "            self.pause(Duration::ZERO, now, chance);\n            self.hold_on(now);\n",
            "            self.pause(Duration::ZERO, now, chance);\n",
        ),
    ),
    Mutant(
        "faith begins at the next try",
        ("(now if self._due is None else self._due) + self", "now + self"),
        ("(this.#due ?? now) + believedOf", "now + believedOf"),
        ("self.due.unwrap_or(now).saturating_add", "now.saturating_add"),
    ),
    Mutant(
        "faith begins now where nobody tries",
        ("(now if self._due is None else self._due) + self", "(0 if self._due is None else self._due) + self"),
        ("(this.#due ?? now) + believedOf", "(this.#due ?? 0) + believedOf"),
        ("self.due.unwrap_or(now).saturating_add", "self.due.unwrap_or_default().saturating_add"),
    ),
    Mutant(
        "failures make pauses longer",
        ("        self._failures += 1\n", "        self._failures = 1\n"),
        ("    this.#failures += 1;\n", "    this.#failures = 1;\n"),
        ("self.failures = self.failures.saturating_add(1);", "self.failures = 1;"),
    ),
    Mutant(
        "a pause fits the rest of the lease",
        ("heartbeat_retry_pause_ms(pause, self.until - now)", "pause"),
        ("Math.floor(heartbeatRetryPause(pause, this.until - now))", "pause"),
        ("whole(heartbeat_retry_pause(pause, self.until.saturating_sub(now)))", "whole(pause)"),
    ),
    Mutant(
        "nobody tries again for a caller that is told",
        (' if self.terms.beats != "manual" or self._renewals else None', ""),
        ('this.terms.beats !== "manual" || this.#renewals.length > 0 ? next : undefined', "next"),
        ("self.due = goes_on.then_some(next);", "self.due = Some(next).filter(|_| goes_on || true);"),
    ),
    Mutant(
        "a caller by hand is tried for again",
        (' if self.terms.beats != "manual" or self._renewals else None', ' if self.terms.beats != "manual" else None'),
        (" || this.#renewals.length > 0 ? next", " ? next"),
        ("self.terms.beats != Beats::Manual || !self.renewals.is_empty();", "self.terms.beats != Beats::Manual;"),
    ),
    Mutant(
        "a caller names a lease",
        ("self.lease if renewal.lease is None else renewal.lease, renewal.change", "self.lease, renewal.change"),
        ("renewal?.lease ?? this.lease", "this.lease"),
        (
            "renewal.and_then(|renewal| renewal.lease).unwrap_or(lease)",
            "renewal.and_then(|renewal| renewal.lease.filter(|_| false)).unwrap_or(lease)",
        ),
    ),
    Mutant(
        "a shorter lease caps the belief",
        ("        self.until = min(self.until, int(beat.sent) + self.terms.believed(lease))\n", ""),
        ("    this.until = Math.min(this.until, turn.firstSent + believedOf(this.terms, lease));\n", ""),
        ("        self.until = self.until.min(beat.first_sent.saturating_add(self.terms.believed(lease)));\n", ""),
    ),
    Mutant(
        "the belief bounds a time-out",
        ("min(lease, believed), self.until - now)", "lease, self.until - now)"),
        ("requestTimeout(Math.min(lease, believed), this", "requestTimeout(lease, this"),
        ("Some(lease.min(believed)), left)", "Some(lease.min(believed.max(lease))), left)"),
    ),
    Mutant(
        "the rest bounds a time-out",
        ("min(lease, believed), self.until - now)", "min(lease, believed), None)"),
        ("Math.min(lease, believed), this.until - now)", "Math.min(lease, believed), Infinity)"),
        ("Some(lease.min(believed)), left)", "Some(lease.min(believed)), left.max(Duration::MAX))"),
    ),
    Mutant(
        "a result belongs to its caller",
        ("        if not self._renewals or self._renewals[0].call != call:", "        if not self._renewals:"),
        (
            "if (renewal === undefined || renewal.call !== call) return false;",
            "if (renewal === undefined) return false;",
        ),
        (".filter(|first| Some(*first) == call)", ".filter(|_| call.is_some() || true)"),
    ),
    Mutant(
        "callers are told once",
        ("for renewal in self._renewals)\n        self._renewals = []\n", "for renewal in self._renewals)\n"),
        (
            'actions.push({ type: "finish", call, outcome });\n    this.#renewals = [];\n',
            'actions.push({ type: "finish", call, outcome });\n',
        ),
        ("self.renewals.drain(..).map(", "self.renewals.clone().into_iter().map("),
    ),
    Mutant(
        "the end of a scope is bounded",
        ("leave_bound_ms(self.remaining(now))", "self.remaining(now)"),
        ("leaveBound(this.remaining(now))", "this.remaining(now)"),
        ("leave_bound(self.remaining(now))", "leave_bound(self.remaining(now)).max(self.remaining(now))"),
    ),
    Mutant(
        "the end abandons a heartbeat",
        ("            actions.append(AbandonBeat(self.under_way))\n", ""),
        ('    if (this.underWay !== undefined) actions.push({ type: "abandon", send: this.underWay });\n', ""),
        ("actions.extend(self.under_way.take().map(|send| Action::Abandon { send }));", "self.under_way = None;"),
    ),
    Mutant(
        "an abandoned heartbeat is not under way",
        (
            "            actions.append(AbandonBeat(self.under_way))\n            self.under_way = None\n",
            "            actions.append(AbandonBeat(self.under_way))\n",
        ),
        (
            '    this.underWay = undefined;\n    this.#finishAll({ type: "ended" }',
            '    this.#finishAll({ type: "ended" }',
        ),
        ("self.under_way.take().map(|send| Action::Abandon", "self.under_way.map(|send| Action::Abandon"),
    ),
    Mutant(
        "the end tells callers",
        ('        self._finish_all("ended", None, actions)\n', ""),
        ('    this.#finishAll({ type: "ended" }, actions);\n', ""),
        ("        self.finish_all(Outcome::Ended, actions);\n", ""),
    ),
    Mutant(
        "half of a lease is at risk",
        ("self.lease // 2 if risk.left is None else risk.left", "risk.left or 0"),
        ("left ?? Math.floor(this.lease / 2)", "left ?? 0"),
        ("risk.left.unwrap_or_else(|| whole(self.lease / 2))", "risk.left.unwrap_or_default()"),
    ),
    Mutant(
        "a tick comes at the end of faith",
        ("for end in (self.until, self._faith)", "for end in (self.until,)"),
        ("[this.until, this.#faith].filter", "[this.until].filter"),
        ("[Some(self.until), self.faith].into_iter()", "[Some(self.until)].into_iter()"),
    ),
    Mutant(
        "no tick comes for the past",
        (" if end is not None and end > now]", " if end is not None]"),
        (".filter((end) => end > now)", ".filter((end) => end > -Infinity)"),
        (".filter(|end| *end > now)", ""),
    ),
    Mutant(
        "a tick comes at the end of the longest hold",
        ("            times.append(self._hold_ends)\n", "            pass\n"),
        (", this.#holdEnds, this.#due ?? Infinity);", ", this.#due ?? Infinity);"),
        (".chain(ends).chain(self.hold_ends).min()", ".chain(ends).min()"),
    ),
    Mutant(
        "a tick comes for a heartbeat",
        ("            times.append(self._due)\n", "            pass\n"),
        (", this.#holdEnds, this.#due ?? Infinity);", ", this.#holdEnds);"),
        ("warnings.chain(self.due).chain(ends)", "warnings.chain(ends)"),
    ),
    Mutant(
        "a tick comes for a risk",
        ("for risk in self._risks if not risk.told]", "for risk in self._risks if False]"),
        ("this.#risks.filter(({ isTold }) => !isTold)", "this.#risks.filter(() => false)"),
        ("self.risks.iter().filter(|risk| !risk.is_told)", "self.risks.iter().filter(|_| false)"),
    ),
    Mutant(
        "a time is asked for once",
        ("        if min(times) != self._wake:", "        if True:"),
        ("    if (next === this.#wake) return;\n", ""),
        ("            && self.wake != Some(next)\n", ""),
    ),
    Mutant(
        "a tick is over",
        ("                self._wake = None\n", ""),
        ("        this.#wake = undefined;\n", ""),
        ("                self.wake = None;\n                self.tick", "                self.tick"),
    ),
    Mutant(
        "nothing is planned after the end",
        ('        if self.state != "held":\n            return\n        times', "        times"),
        ('    if (this.#state !== "held") return;\n    const times', "    const times"),
        (
            "        if self.state != State::Held {\n            return;\n        }\n        let warnings",
            "        let warnings",
        ),
    ),
    Mutant(
        "a release may fail",
        ('        self.state = "released" if end == "done" else "unreleased"', '        self.state = "released"'),
        ('this.#state = end.type === "done" ? "released" : "unreleased";', 'this.#state = "released";'),
        ("self.state = State::Unreleased;", "self.state = State::Released;"),
    ),
    Mutant(
        "a release that did not arrive explains no loss",
        ("if not may_apply or stores", "if stores"),
        ("if (!event.mayApply || event.stores", "if (event.stores"),
        ("if !may_apply || stores", "if stores"),
    ),
    Mutant(
        "a release in doubt explains no loss",
        (" or self._suspended is not None or sent", " or sent"),
        (" || this.#suspended !== undefined || event.sent", " || event.sent"),
        (" || self.suspended.is_some() || sent", " || sent"),
    ),
    Mutant(
        "a release after the lease explains no loss",
        (" or sent >= self.until:", ":"),
        (" || event.sent >= this.until)\n", ")\n"),
        (" || sent >= self.until {", " {"),
    ),
    Mutant(
        "a lease ends at its end, also for a release",
        ("sent >= self.until:", "sent > self.until:"),
        ("event.sent >= this.until)", "event.sent > this.until)"),
        ("sent >= self.until {", "sent > self.until {"),
    ),
    Mutant(
        "a release that stores something explains no loss",
        ("if not may_apply or stores or self", "if not may_apply or self"),
        ("if (!event.mayApply || event.stores || this", "if (!event.mayApply || this"),
        ("if !may_apply || stores || self", "if !may_apply || self"),
    ),
    Mutant(
        "an unanswered release explains a loss",
        ("                self._may_be_given_back = True\n", ""),
        ("        this.#mayBeGivenBack = true;\n", ""),
        ("                self.may_be_given_back = true;\n", ""),
    ),
    Mutant(
        "a loss needs an explanation",
        ("isinstance(end, WasLost) and self._may_be_given_back:", "isinstance(end, WasLost):"),
        ('end.type === "lost" && this.#mayBeGivenBack)', 'end.type === "lost")'),
        ("Return::Lost { .. } if self.may_be_given_back =>", "Return::Lost { .. } if self.lease > Duration::ZERO =>"),
    ),
    Mutant(
        "only a release under way explains a loss",
        ('case Untold(sent, may_apply, stores) if self.state == "releasing":', "case Untold(sent, may_apply, stores):"),
        ('        if (this.#state !== "releasing") return "stale";\n', ""),
        (
            "Event::Untold { sent, may_apply, stores } if self.state == State::Releasing =>",
            "Event::Untold { sent, may_apply, stores } =>",
        ),
    ),
    Mutant(
        "a suspension ends the lease of a release",
        ("                self.until = min(self.until, now)\n", ""),
        ("          this.until = Math.min(this.until, now);\n", ""),
        ("                self.until = self.until.min(now);\n", ""),
    ),
    Mutant(
        "a suspension makes no lease longer",
        ("self.until = min(self.until, now)", "self.until = now"),
        ("this.until = Math.min(this.until, now);", "this.until = now;"),
        ("self.until = self.until.min(now);", "self.until = now;"),
    ),
    Mutant(
        "a suspension ends the lease between two releases, too",
        ('self.state in ("releasing", "unreleased")', 'self.state == "releasing"'),
        ('this.#state === "releasing" || this.#state === "unreleased"', 'this.#state === "releasing"'),
        ("State::Releasing | State::Unreleased)", "State::Releasing)"),
    ),
    Mutant(
        "a release is told once",
        ('            case Returned(end) if self.state == "releasing":', "            case Returned(end):"),
        (
            'this.#state === "releasing" ? this.#returned(event.end, actions) : "stale"',
            "this.#returned(event.end, actions)",
        ),
        ("Event::Returned(end) if self.state == State::Releasing =>", "Event::Returned(end) =>"),
    ),
]


def of_python(folder: pathlib.Path, interpreter: str) -> tuple[list[str], pathlib.Path, dict[str, str]]:
    client = folder / "clients/python"
    shutil.copytree(ROOT / "clients/python/src", client / "src")
    shutil.copytree(ROOT / "clients/python/tests", client / "tests")
    shutil.copy(ROOT / "clients/python/pyproject.toml", client)
    shutil.copytree(ROOT / "clients/vectors", folder / "clients/vectors")
    command = [interpreter, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_traces.py"]
    return command, client, {"PYTHONPATH": str(client / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def of_typescript(folder: pathlib.Path) -> tuple[list[str], pathlib.Path, dict[str, str]]:
    client, theirs = folder / "clients/typescript", ROOT / "clients/typescript"
    for part in ("dist", "build"):
        shutil.copytree(theirs / part, client / part)
    (client / "src").mkdir()
    (client / "node_modules").symlink_to(theirs / "node_modules")
    shutil.copy(theirs / "package.json", client)
    shutil.copytree(ROOT / "clients/vectors", folder / "clients/vectors")
    (client / "transpile.cjs").write_text(
        'const fs = require("node:fs"), ts = require("typescript");\n'
        "const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };\n"
        'const { outputText } = ts.transpileModule(fs.readFileSync("src/holder.ts", "utf8"), { compilerOptions });\n'
        'fs.writeFileSync("dist/holder.js", outputText);\n'
    )
    return ["sh", "-c", "node transpile.cjs && node --test build/traces.test.js"], client, {}


def of_rust(folder: pathlib.Path) -> tuple[list[str], pathlib.Path, dict[str, str]]:
    """A workspace of the one crate: a mutant compiles its few files, and nothing of the service."""
    core = "shared/leasehold-client-core"
    shutil.copytree(ROOT / core, folder / core)
    shutil.copytree(ROOT / "clients/vectors", folder / "clients/vectors")
    form = "tests/leasehold-recorder/src/form.rs"
    (folder / form).parent.mkdir(parents=True)
    shutil.copy(ROOT / form, folder / form)
    for name in ("Cargo.lock", "README.md", "rust-toolchain.toml"):
        shutil.copy(ROOT / name, folder / name)
    manifest = (ROOT / "Cargo.toml").read_text()
    whole = re.sub(r"^(members = ).*", rf'\1["{core}"]', manifest, flags=re.MULTILINE)
    (folder / "Cargo.toml").write_text(re.sub(r"^(exclude|default-members) = .*\n", "", whole, flags=re.MULTILINE))
    command = ["cargo", "test", "--quiet", "--offline", "--test", "traces"]
    return command, folder, {"CARGO_TARGET_DIR": str(folder / "target"), "CARGO_INCREMENTAL": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Drops one clause after the other of the holder.")
    parser.add_argument("language", choices=SOURCES)
    parser.add_argument("interpreter", nargs="?", default=sys.executable)
    parser.add_argument("--show", type=int, help="only this mutant, from 0")
    arguments = parser.parse_args()
    text = (ROOT / SOURCES[arguments.language]).read_text()
    mutants = [(mutant.name, getattr(mutant, arguments.language)) for mutant in MUTANTS]
    mutants = [mutant for mutant in mutants if mutant[1] is not None]
    if arguments.show is not None:
        mutants = [mutants[arguments.show]]
    alive = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = pathlib.Path(name)
        if arguments.language == "python":
            interpreter = str(pathlib.Path(arguments.interpreter).absolute())
            command, place, more = of_python(folder, interpreter)
        else:
            command, place, more = (of_typescript if arguments.language == "typescript" else of_rust)(folder)
        port = folder / SOURCES[arguments.language]
        for what, (clause, instead) in [("", ("", "")), *mutants]:
            if clause not in text:
                print(f"there is no such clause: {clause!r}")
                return 2
            port.write_text(text.replace(clause, instead, 1) if clause else text)
            done = subprocess.run(
                command, cwd=place, env=os.environ | more, capture_output=True, text=True, check=False
            )
            if not clause and done.returncode != 0:
                print("the machine itself fails", done.stdout[-2000:], done.stderr[-2000:])
                return 2
            if "could not compile" in done.stderr or "SyntaxError" in done.stdout + done.stderr:
                print(f"{what}: this is no mutant", done.stdout[-500:], done.stderr[-2000:])
                return 2
            if clause and done.returncode == 0:
                alive += 1
                print(f"no trace needs that {what}: {clause.strip()!r}", flush=True)
    print(f"{arguments.language}: {len(mutants)} mutants, {alive} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
