#!/usr/bin/env python3
"""Drops one clause after the other of the holder's port in Python, and replays the traces: each must fail.

    scripts/holder_mutants.py PYTHON        the interpreter of the client's environment

The port has the clauses of `holder.rs`, line for line. A clause that no trace needs is one that a port may lack.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

CLIENT = pathlib.Path(__file__).resolve().parents[1] / "clients/python"
PORT = "src/leasehold/_holder.py"
# The clause, and what stands in its place.
MUTANTS = [
    ("        if over is not None:\n            self._lose(over, actions)\n", ""),
    (
        '        return "max-hold" if self._hold_ends is not None and now >= self._hold_ends else None',
        "        return None",
    ),
    (" and (self._faith is None or now >= self._faith)", ""),
    (" and self._suspended is None and self._over(now) is None", " and self._over(now) is None"),
    ("self.until if self._hold_ends is None else min(self.until, self._hold_ends)", "self.until"),
    ('                if self.under_way is not None:\n                    return "queued"\n', ""),
    ('        if not left and self.terms.beats == "manual":\n            self._due = None\n', ""),
    ("            case BeatEnded(send, end) if self.under_way == send:", "            case BeatEnded(send, end):"),
    ("                self._suspended = self.numbers.last\n", ""),
    (' and self.terms.beats != "manual":\n                    self._beat', ":\n                    self._beat"),
    ("            if not risk.told and now", "            if now"),
    ("                self.wanted = self.wanted or wanted\n", ""),
    ("                if token != self.token:\n", "                if False:\n"),
    (" and beat.sequence <= self._suspended", ""),
    ("                if now - beat.sent >= self.terms.believed(lease):", "                if False:"),
    ("                    self.trouble = send\n                    self._again", "                    self._again"),
    ("                self._renewed(int(beat.sent), lease)", "                self._renewed(now, lease)"),
    ("                self.numbers.ended(sequence)\n", '                self.numbers.ended("told")\n'),
    ("                if token is not None and token != self.token:\n", "                if False:\n"),
    (
        " self.trouble, self._faith, self._renumbered = send, None, False",
        " self.trouble, self._renumbered = send, False",
    ),
    ("                was_wanted = self._finish(", "                was_wanted = False and self._finish("),
    ('self.numbers.ended("may-apply" if may_apply else "untold")', 'self.numbers.ended("untold")'),
    ('"may-apply" if end in ("cut-off", "timed-out") else "untold"', '"untold"'),
    ('        self._hold_on(now)\n        return "held-on"', '        return "held-on"'),
    ("        if self._renumbered:\n", "        if False:\n"),
    ("        self.trouble, self._renumbered = send, False\n", "        self.trouble = send\n"),
    ("        self._failures, self._renumbered = 0, False\n", "        self._renumbered = False\n"),
    (
        "        self.trouble, self._faith, self._suspended = None, None, None\n",
        "        self.trouble, self._faith = None, None\n",
    ),
    (
        "        self.trouble, self._faith, self._suspended = None, None, None\n",
        "        self.trouble, self._suspended = None, None\n",
    ),
    (
        "        self.trouble, self._faith, self._suspended = None, None, None\n",
        "        self._faith, self._suspended = None, None\n",
    ),
    ("        interval = min(interval, longest_heartbeat_interval_ms(believed))\n", ""),
    ("heartbeat_retry_pause_ms(pause, max(0, self.until - now))", "pause"),
    (' if self.terms.beats != "manual" or self._wishes else None', ""),
    (" if wish.lease is None else wish.lease, wish.change", ", wish.change"),
    ("        self.until = min(self.until, int(beat.sent) + self.terms.believed(lease))\n", ""),
    ("min(lease, believed), max(0, self.until - now))", "lease, max(0, self.until - now))"),
    ("        if not self._wishes or self._wishes[0].call != call:", "        if not self._wishes:"),
    ("leave_bound_ms(self.remaining(now))", "self.remaining(now)"),
    (
        "        if self.under_way is not None:\n            actions.append(AbandonBeat(self.under_way))\n",
        "        if True:\n",
    ),
    ('        self._finish_all((FinishRenew(wish.call, "ended") for wish in self._wishes), actions)\n', ""),
    ("self.lease // 2 if risk.left is None else risk.left", "risk.left or 0"),
    ("for end in (self.until, self._faith)", "for end in (self.until,)"),
    (" if end is not None and end > now]", " if end is not None]"),
    ("            times.append(self._hold_ends)\n", "            pass\n"),
    (" and min(times) != self._wake:", ":"),
    ("                self._wake = None\n", ""),
    ('        self.state = "released" if end == "done" else "unreleased"', '        self.state = "released"'),
    ('            case Returned(end) if self.state == "releasing":', "            case Returned(end):"),
]


def main() -> int:
    python = str(pathlib.Path(sys.argv[1]).absolute())
    text = (CLIENT / PORT).read_text()
    alive = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = pathlib.Path(folder) / "clients/python"
        shutil.copytree(CLIENT / "src", copy / "src")
        shutil.copytree(CLIENT / "tests", copy / "tests")
        shutil.copy(CLIENT / "pyproject.toml", copy)
        shutil.copytree(CLIENT.parent / "vectors", copy.parent / "vectors")
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_traces.py"]
        for clause, instead in [("", ""), *MUTANTS]:
            if clause not in text:
                print(f"there is no such clause: {clause!r}")
                return 2
            (copy / PORT).write_text(text.replace(clause, instead, 1) if clause else text)
            environment = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
            fails = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode != 0
            if not clause and fails:
                print("the port itself fails")
                return 2
            if clause and not fails:
                alive += 1
                print(f"no trace needs {clause.strip()!r}, instead of which there was {instead.strip()!r}")
    print(f"{len(MUTANTS)} mutants, {alive} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
