"""Runs a state machine's definition in virtual time, and counts the events of its history.

Virtual time makes runs of days testable. The library of the local AWS evaluates JSONata. This module carries out the
states that the definitions use, and a function of the caller answers the Task states.
"""

import copy
import hashlib
import json
import uuid
from datetime import UTC, datetime

import jsonata

# The limit of a standard execution: AWS ends it when its history is full.
MAX_EVENTS = 25_000


class TaskError(Exception):
    """The failure of a Task state, after so many seconds."""

    def __init__(self, error, cause="", seconds=0.1):
        super().__init__(error)
        self.error, self.cause, self.seconds = error, cause, seconds


class HistoryFull(Exception):
    """The execution has more events than a history holds."""


class Aborted(Exception):
    """An operator aborts the execution. `redrive` continues it."""


class BeyondDeadline(Exception):
    """Another branch has failed before this branch enters its next state."""


class StateError(Exception):
    """The failure of an expression or of a Fail state, inside of a branch or a state."""

    def __init__(self, error, cause=""):
        super().__init__(error)
        self.error, self.cause = error, cause


class Frame:
    """A place in the machine, or in a branch of a Parallel state: the state, its input, and the variables."""

    def __init__(self, machine, value, variables):
        self.states, self.name = machine["States"], machine["StartAt"]
        self.value, self.variables, self.branches = value, variables, None


class Execution:
    """One run. `task(name, arguments, now)` returns seconds and a result, or raises TaskError or Aborted.

    With `abort_at`, the execution is aborted as it enters its state of that number.
    """

    def __init__(self, definition, given, task, abort_at=None):
        self.task, self.input, self.expressions = task, given, {}
        self.now, self.events, self.redrives = 1_800_000_000.0, 1, 0
        self.entered, self.abort_at = [], abort_at
        self.root = Frame(definition, given, {})

    @property
    def variables(self):
        return self.root.variables

    def run(self):
        """Returns (status, output or error)."""
        try:
            return "SUCCEEDED", self.run_frame(self.root, None)
        except StateError as failure:
            return "FAILED", failure.error

    def redrive(self):
        """Continues after Aborted, as AWS does: from the states that did not end, with their inputs."""
        self.redrives += 1
        return self.run()

    def run_frame(self, frame, deadline):
        """Runs the states up to the end, and returns the output. A failure leaves the frame at its state."""
        while frame.name is not None:
            if deadline is not None and self.now >= deadline:
                raise BeyondDeadline
            if frame.branches is None:
                self.count(1)
                self.entered.append((frame.name, self.now))
                if len(self.entered) == self.abort_at:
                    raise Aborted
            frame.value, frame.name = self.run_state(frame, frame.states[frame.name], deadline)
            frame.branches = None
            self.count(1)
        return frame.value

    def run_state(self, frame, state, deadline):
        """Returns the output and the name of the next state."""
        value, context = frame.value, self.context(frame.name)
        kind = state["Type"]
        if kind == "Fail":
            error, cause = (self.value(state[part], frame, context) for part in ("Error", "Cause"))
            raise StateError(error, cause)
        if kind in ("Task", "Parallel"):
            return self.run_task(frame, state, context, deadline)
        if kind == "Choice":
            chosen = next(
                (choice for choice in state["Choices"] if self.value(choice["Condition"], frame, context)), None
            )
            rule = chosen or {**state, "Next": state["Default"]}
            return self.leave(rule, frame, context, value), rule["Next"]
        if kind == "Wait":
            self.now += self.value(state["Seconds"], frame, context)
        return self.leave(state, frame, context, value), state.get("Next")

    def run_task(self, frame, state, context, deadline):
        retries = {}
        while True:
            context["State"]["RetryCount"] = sum(retries.values())
            try:
                if state["Type"] == "Parallel":
                    result = self.run_branches(frame, state, deadline)
                else:
                    arguments = self.value(state["Arguments"], frame, context)
                    self.count(3)
                    result = self.attempt(frame, state, arguments, context)
                return self.leave(state, frame, context, result, result=result), state.get("Next")
            except (TaskError, StateError) as failure:
                index, retrier = matching(state.get("Retry", []), failure.error)
                if retrier and retries.get(index, 0) < retrier.get("MaxAttempts", 3):
                    pause = retrier["IntervalSeconds"] * retrier["BackoffRate"] ** retries.get(index, 0)
                    self.now += min(pause, retrier.get("MaxDelaySeconds", pause))
                    retries[index] = retries.get(index, 0) + 1
                    continue
                _, catcher = matching(state.get("Catch", []), failure.error)
                if not catcher:
                    raise StateError(failure.error, failure.cause) from failure
                error = {"Error": failure.error, "Cause": failure.cause}
                return self.leave(catcher, frame, context, error, error=error), catcher["Next"]

    def run_branches(self, frame, state, deadline):
        """Runs the branches one after the other, each from the same time on, and aborts those that a failure ends.

        A branch that another one shall end must come after it.
        """
        if frame.branches is None:
            frame.branches = [Frame(branch, frame.value, dict(frame.variables)) for branch in state["Branches"]]
        began, ended, failures, before = self.now, [], [], []
        for index, branch in enumerate(frame.branches):
            before.append(copy.deepcopy(branch))
            self.now = began
            try:
                self.run_frame(branch, deadline)
                ended.append(self.now)
            except StateError as failure:
                failures.append((self.now, index, failure))
                deadline = self.now if deadline is None else min(deadline, self.now)
            except BeyondDeadline:
                if not failures:
                    raise
            except Aborted:
                # What was to fail later has not failed.
                for later in (failed for at, failed, _ in failures if at > self.now):
                    frame.branches[later] = before[later]
                raise
        if failures:
            self.now, _, first = min(failures, key=lambda failed: failed[:2])
            frame.branches = None
            raise first
        self.now = max(ended)
        return [branch.value for branch in frame.branches]

    def attempt(self, frame, state, arguments, context):
        limit = self.value(state.get("TimeoutSeconds", 99_999_999), frame, context)
        try:
            seconds, result = self.task(frame.name, arguments, self.now)
        except TaskError as failure:
            self.now += min(failure.seconds, limit)
            if failure.seconds > limit:
                raise TaskError("States.Timeout") from None
            raise
        if seconds > limit:
            self.now += limit
            raise TaskError("States.Timeout")
        self.now += seconds
        return result

    def leave(self, fields, frame, context, default, **states):
        output = self.value(fields["Output"], frame, context, **states) if "Output" in fields else default
        assigned = {
            name: self.value(expression, frame, context, **states)
            for name, expression in fields.get("Assign", {}).items()
        }
        frame.variables |= assigned
        return output

    def value(self, template, frame, context, result=None, error=None):
        if isinstance(template, dict):
            return {name: self.value(part, frame, context, result, error) for name, part in template.items()}
        if isinstance(template, list):
            return [self.value(part, frame, context, result, error) for part in template]
        if not (isinstance(template, str) and template.startswith("{%")):
            return template
        expression = self.expressions.get(template) or self.parse(template)
        states = {"input": frame.value, "context": context, "result": result, "errorOutput": error}
        try:
            found = expression.evaluate(None, {**frame.variables, "states": states})
        except jsonata.JException as failure:
            raise StateError("States.QueryEvaluationError", str(failure)) from failure
        assert found is not None, f"undefined: {template}"
        return found

    def parse(self, template):
        expression = jsonata.Jsonata.jsonata(template[2:-2].strip())
        for name, function in {
            "millis": lambda: round(self.now * 1000),
            "uuid": lambda: str(uuid.uuid4()),
            "parse": json.loads,
            "hash": lambda text, _: hashlib.sha256(text.encode()).hexdigest(),
        }.items():
            expression.register_lambda(name, function)
        self.expressions[template] = expression
        return expression

    def context(self, name):
        entered = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="milliseconds")
        return {
            "Execution": {
                "Id": "arn:aws:states:eu-west-1:123456789012:execution:run-under-lock:1",
                "Input": self.input,
                "Name": "1",
                "RedriveCount": self.redrives,
            },
            "StateMachine": {"Name": "run-under-lock"},
            "Task": {"Token": "token"},
            "State": {"Name": name, "EnteredTime": entered.replace("+00:00", "Z"), "RetryCount": 0},
        }

    def count(self, events):
        self.events += events
        if self.events > MAX_EVENTS:
            raise HistoryFull(f"after {self.now - 1_800_000_000:.0f} s")


def matching(rules, error):
    for index, rule in enumerate(rules):
        if error in rule["ErrorEquals"] or "States.ALL" in rule["ErrorEquals"]:
            return index, rule
    return None, None
