"""Tests in virtual time that no redriven execution works without the lock.

Called by step-functions.sh: the local AWS has no redrive. Each definition is aborted as it enters each of its states,
or while each of its tasks is under way. The clean-up releases what it held, at once or late, somebody else takes the
lock, and an operator redrives the execution.
"""

import itertools
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from virtual_time import Aborted, Execution, TaskError

ROOT = pathlib.Path(__file__).parent.parent
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:locked-export"
# The guards that docs/step-functions.md tells authors to write.
GUARD = "{% $states.context.Execution.RedriveCount > $lockRedrives ? $error('LockLost') : 3600 %}"
GUARD_OF_CHILD = "{% $states.context.Execution.RedriveCount > 0 ? $error('LockLost') : 3600 %}"
CHILD_SECONDS = 40
# The time from an abort to the redrive. The last pass of the clean-up comes later.
REDRIVEN_AFTER = 20


class Service:
    """One lock or semaphore of one permit, a child, and a clean-up that comes after so many seconds.

    It checks that whoever works holds the lock.
    """

    def __init__(self, clean_up_after=0, abort_in=None):
        self.holder, self.released = "another", set()
        self.clean_up_after, self.abort_in, self.calls = clean_up_after, abort_in, 0
        self.clean_ups, self.freed_at, self.worked = [], None, []
        self.granted = False
        self.child_until, self.ticket, self.working_until = None, None, 0

    def __call__(self, name, arguments, now):
        self.tick(now)
        self.calls += 1
        payload = arguments.get("Payload", {})
        answer = getattr(self, payload["action"].split("-")[-1] if payload else name)(payload or arguments, now)
        if self.calls == self.abort_in:
            raise Aborted
        return answer

    def aborted(self, now, redrives):
        """EventBridge tells of the end: the clean-up releases at once, and again a minute later."""
        self.working_until = 0
        self.clean_ups = [(now + seconds, redrives) for seconds in (self.clean_up_after, self.clean_up_after + 60)]

    def tick(self, now):
        """Does what others have done since. Somebody else takes a lock that is free, and has it for some seconds."""
        if self.child_until is not None and now >= self.child_until:
            self.child_until = None
        for due in [due for due in self.clean_ups if due[0] <= now]:
            self.clean_ups.remove(due)
            self.child_until = None
            if self.holder not in (None, "another") and redrives_of(self.holder) <= due[1]:
                assert due[0] >= self.working_until, "the clean-up releases the lock of one who works"
                self.released.add(self.holder)
                self.holder, self.freed_at = "another", due[0] + 15
        if self.holder == "another" and now >= (self.freed_at or 0):
            self.holder = None

    def work(self, now):
        assert self.holder not in (None, "another"), f"works without the lock, {now - 1_800_000_000:.0f} s on"
        self.worked.append(self.holder)

    # Tasks with names, and the functions by their actions.

    def DescribeMachine(self, _, now):
        return 0.1, {"Type": "STANDARD"}

    def Work(self, _, now):
        self.work(now)
        self.working_until = now + 5
        return 5, {}

    MoreWork = Work

    def StartChild(self, arguments, now):
        self.work(now)
        self.child_until = now + CHILD_SECONDS
        return 0.1, {"ExecutionArn": MACHINE.replace(":stateMachine:", ":execution:") + ":" + arguments["Name"]}

    def AwaitEnd(self, _, now):
        if self.child_until is None:
            raise TaskError("DynamoDb.ConditionalCheckFailedException")
        return self.child_until - now, {}

    def LookAtChild(self, _, now):
        return 0.1, {"Status": "RUNNING" if self.child_until else "SUCCEEDED", "Output": "{}"}

    FetchResult = LookAtChild

    def StopChild(self, _, now):
        self.child_until = None
        return 0.1, {}

    def LockStartCleanUp(self, _, now):
        return 0.1, {}

    StartCleanUp = PermitsStartCleanUp = LockStartCleanUp

    def acquire(self, payload, now):
        asked = payload["execution"]["acquisition"]
        if asked in self.released:
            raise TaskError("LockLost", "released")
        if self.holder not in (None, asked):
            lock = {"recordVersionNumber": "1", "ownerName": "another", "leaseDurationMs": 20_000}
            raise TaskError("LockHeld", json.dumps({"errorMessage": json.dumps({"lock": lock})}))
        self.holder, self.granted = asked, True
        return 0.1, {"Payload": {"fencingToken": 1}}

    def enqueue(self, payload, now):
        if self.holder is None:
            return self.acquire(payload, now)
        self.ticket = payload["execution"]["acquisition"]
        return 0.1, {"Payload": {"ticketId": self.ticket, "number": 1}}

    def get(self, payload, now):
        free = self.holder is None
        holders = [] if free else [{"holderId": "h", "version": str(now), "leaseDurationMs": 60_000, "permits": 1}]
        ticket = {"ticketId": self.ticket, "version": "1", "leaseDurationMs": 360_000, "permits": 1, "number": 1}
        queue = [ticket] if self.ticket else []
        view = {"holders": holders, "queue": queue, "available": int(free), "capacity": 1, "epoch": "e"}
        return 0.1, {"Payload": view}

    def heartbeat(self, payload, now):
        if self.holder != payload["execution"]["acquisition"]:
            raise TaskError("LockLost", "another holds it")
        return 0.1, {"Payload": {}}

    def release(self, payload, now):
        asked = payload["execution"]["acquisition"]
        if self.holder != asked:
            raise TaskError("LockLost", "another holds it")
        assert self.child_until is None, "released beside the child"
        self.released.add(asked)
        self.holder = None
        return 0.1, {"Payload": {}}


def redrives_of(acquisition):
    """The number of redrives before this acquisition, as the function cleanup reads it."""
    _, _, redrives = acquisition.partition(".")
    return int(redrives or 0)


def definition(name):
    return json.loads((ROOT / f"statemachines/{name}.asl.json").read_text())


def with_work(name, holding, heartbeat, guard):
    """The definition with two tasks of its author's, and a heartbeat between them."""
    machine = definition(name)
    states = machine["States"][holding]["Branches"][0]["States"]
    work = {
        "Type": "Task",
        "Resource": "work",
        "Arguments": {},
        "TimeoutSeconds": guard,
        "Output": "{% $states.input %}",
    }
    machine["States"][holding]["Branches"][0]["StartAt"] = "Work"
    copy = json.loads(json.dumps(states[heartbeat]))
    del copy["End"]
    states["Work"] = {**work, "Next": "Between"}
    states["Between"] = {**copy, "Next": "MoreWork"}
    states["MoreWork"] = {**work, "Next": heartbeat}
    del states["YourWork"]
    return machine


MACHINES = {
    "run-under-lock": (definition("run-under-lock"), {"key": "k", "stateMachineArn": MACHINE, "pollSeconds": 1}),
    "mutex": (with_work("mutex", "Locked", "LockStillMine", GUARD), {"key": "k", "pollSeconds": 1}),
    "semaphore": (
        with_work("semaphore", "WithPermits", "PermitsStillMine", GUARD.replace("lockRedrives", "permitsRedrives")),
        {"key": "k", "capacity": 1, "pollSeconds": 1},
    ),
}


def redriven(name, clean_up_after, **abort):
    """Redrives the machine where it was aborted; returns its service, ending and work. None: it was not aborted."""
    machine, given = MACHINES[name]
    abort_at = abort.get("at_state")
    service = Service(clean_up_after, abort.get("in_task"))
    text = json.dumps(machine).replace("${WaitersTableName}", "")
    execution = Execution(json.loads(text), given, service, abort_at)
    try:
        service.freed_at = execution.now + 3
        assert execution.run()[0] == "SUCCEEDED"
        return None
    except Aborted:
        service.aborted(execution.now, execution.redrives)
        for second in range(REDRIVEN_AFTER):
            service.tick(execution.now + second)
        execution.now += REDRIVEN_AFTER
        asked, worked = service.granted, len(service.worked)
        ending = execution.redrive()
        service.tick(execution.now + 120)
        # Who had not got the lock before the abort asks anew, and works.
        assert asked or ending[0] == "SUCCEEDED", (name, abort, ending)
        return service, ending, service.worked[worked:]


def no_work_without_the_lock(name):
    """Aborted at each state and in each task, with a clean-up that comes before the redrive, after it, or never."""
    endings = {}
    for how, clean_up_after in itertools.product(("at_state", "in_task"), (0, 25, 10**9)):
        for number in itertools.count(1):
            found = redriven(name, clean_up_after, **{how: number})
            if found is None:
                break
            service, ending, worked = found
            endings[ending if ending[0] == "FAILED" else ending[0]] = 1
            assert service.holder in (None, "another") or clean_up_after > 25, (how, number, ending, service.holder)
            # Nothing of the work is done twice under one acquisition: what went before the abort is not repeated.
            assert len(service.worked) - len(worked) + len(set(worked)) <= 2 * len(set(service.worked)), service.worked
            if ending[0] == "FAILED":
                assert ending[1] in ("LockLost", "LockHeld"), ending
    assert "SUCCEEDED" in endings, endings
    assert ("FAILED", "LockLost") in endings, endings
    return endings


def a_child_works_no_more():
    """A child whose tasks have the guard does nothing after a redrive, wherever it was aborted."""
    work = {"Type": "Task", "Resource": "work", "Arguments": {}, "TimeoutSeconds": GUARD_OF_CHILD}
    states = {"Work": {**work, "Next": "MoreWork"}, "MoreWork": {**work, "Next": "End"}, "End": {"Type": "Pass"}}
    child = {"StartAt": "Work", "States": states}
    for abort_at in (1, 2):
        done = []

        def task(name, arguments, now, done=done):
            done.append(name)
            return 1, {}

        execution = Execution(child, {}, task, abort_at)
        try:
            execution.run()
            raise AssertionError("not aborted")
        except Aborted:
            before = list(done)
            assert execution.redrive() == ("FAILED", "States.QueryEvaluationError")
            assert done == before, done


def a_redriven_child_is_stopped():
    """The clean-up stops a child whose redrive EventBridge tells, and does nothing else."""
    stopped = []

    def task(name, arguments, now):
        assert name == "StopRedrivenChild", name
        stopped.append(arguments["ExecutionArn"])
        return 0.1, {}

    machine = json.loads((ROOT / "statemachines/cleanup.asl.json").read_text().replace("${LateRequestSeconds}", "60"))
    event = {"detail": {"executionArn": "the child", "status": "RUNNING", "input": "{}"}}
    assert Execution(machine, event, task).run()[0] == "SUCCEEDED"
    assert stopped == ["the child"], stopped


def docs_have_the_guards():
    """Authors find both guards in the documentation, word for word."""
    text = (ROOT / "docs/step-functions.md").read_text()
    for guard in (GUARD, GUARD_OF_CHILD):
        assert f'"TimeoutSeconds": "{guard}"' in text, guard


if __name__ == "__main__":
    for machine in MACHINES:
        print(f"  {machine}, aborted anywhere and redriven: {no_work_without_the_lock(machine)}", flush=True)
    for story in (a_child_works_no_more, a_redriven_child_is_stopped, docs_have_the_guards):
        story()
        print(f"  {story.__name__}: {story.__doc__}")
