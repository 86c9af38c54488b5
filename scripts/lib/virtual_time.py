"""Runs a state machine's definition in virtual time, and counts the events of its history.

Virtual time makes runs of days testable. The library of the local AWS evaluates JSONata. This module carries out the
states that the definitions use, and a function of the caller answers the Task states.
"""

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


class Execution:
    """One run. `task(name, arguments, now)` returns seconds and a result, or raises TaskError."""

    def __init__(self, definition, given, task):
        self.states, self.input, self.task = definition["States"], given, task
        self.start_at = definition["StartAt"]
        self.now, self.events, self.variables = 1_800_000_000.0, 1, {}
        self.entered, self.expressions = [], {}

    def run(self):
        """Returns (status, output or error)."""
        name, value = self.start_at, self.input
        while True:
            state = self.states[name]
            self.count(1)
            self.entered.append((name, self.now))
            context = self.context(name)
            kind = state["Type"]
            if kind == "Fail":
                return "FAILED", self.value(state["Error"], value, context)
            if kind == "Task":
                value, following = self.run_task(name, state, value, context)
            elif kind == "Choice":
                chosen = next(
                    (choice for choice in state["Choices"] if self.value(choice["Condition"], value, context)),
                    {"Next": state["Default"]},
                )
                value = self.leave(chosen, value, context, value)
                following = chosen["Next"]
            else:
                if kind == "Wait":
                    self.now += self.value(state["Seconds"], value, context)
                value = self.leave(state, value, context, value)
                following = state.get("Next")
            self.count(1)
            if following is None:
                return "SUCCEEDED", value
            name = following

    def run_task(self, name, state, value, context):
        retries = {}
        while True:
            context["State"]["RetryCount"] = sum(retries.values())
            arguments = self.value(state["Arguments"], value, context)
            self.count(3)
            try:
                result = self.attempt(name, state, arguments)
                return self.leave(state, value, context, result, result=result), state["Next"]
            except TaskError as failure:
                index, retrier = matching(state.get("Retry", []), failure.error)
                if retrier and retries.get(index, 0) < retrier.get("MaxAttempts", 3):
                    pause = retrier["IntervalSeconds"] * retrier["BackoffRate"] ** retries.get(index, 0)
                    self.now += min(pause, retrier.get("MaxDelaySeconds", pause))
                    retries[index] = retries.get(index, 0) + 1
                    continue
                _, catcher = matching(state.get("Catch", []), failure.error)
                if not catcher:
                    raise
                error = {"Error": failure.error, "Cause": failure.cause}
                return self.leave(catcher, value, context, error, error=error), catcher["Next"]

    def attempt(self, name, state, arguments):
        limit = state.get("TimeoutSeconds", 99_999_999)
        try:
            seconds, result = self.task(name, arguments, self.now)
        except TaskError as failure:
            self.now += min(failure.seconds, limit)
            if failure.seconds > limit:
                raise TaskError("States.Timeout") from None
            raise
        self.now += seconds
        return result

    def leave(self, fields, value, context, default, **states):
        output = self.value(fields["Output"], value, context, **states) if "Output" in fields else default
        assigned = {
            name: self.value(expression, value, context, **states)
            for name, expression in fields.get("Assign", {}).items()
        }
        self.variables |= assigned
        return output

    def value(self, template, value, context, result=None, error=None):
        if isinstance(template, dict):
            return {name: self.value(part, value, context, result, error) for name, part in template.items()}
        if isinstance(template, list):
            return [self.value(part, value, context, result, error) for part in template]
        if not (isinstance(template, str) and template.startswith("{%")):
            return template
        expression = self.expressions.get(template) or self.parse(template)
        states = {"input": value, "context": context, "result": result, "errorOutput": error}
        found = expression.evaluate(None, {**self.variables, "states": states})
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
            "Execution": {"Id": "arn:aws:states:eu-west-1:123456789012:execution:run-under-lock:1", "Name": "1"},
            "StateMachine": {"Name": "run-under-lock"},
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
