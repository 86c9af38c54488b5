"""Tests in virtual time that run-under-lock renews a lease while its child runs, and through outages.

Called by step-functions.sh. For each length of run and each lease there are two outages: the longest one that the
holder survives, and a longer one.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from virtual_time import MAX_EVENTS, Execution, TaskError

ROOT = pathlib.Path(__file__).parent.parent
HOUR, DAY = 3600, 86_400
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:locked-export"
# The number of looks of a waiter that waits as long as it may: the most that waiting takes of the history.
ALL_LOOKS = 1000


class Service:
    """Answers the tasks of run-under-lock: a lock that is granted after some looks, a child, and an outage."""

    def __init__(self, child_seconds, looks=0, outage=None, timeouts=True, tells=True):
        self.child_seconds, self.looks, self.outage, self.timeouts = child_seconds, looks, outage, timeouts
        # Whether EventBridge tells the child's end.
        self.tells = tells
        self.child_started = self.child_stopped = None
        # The end of the lease for an observer that saw the last renewal at once.
        self.lease_end = None
        self.leases = []
        self.sequences = []
        # The number of first acquires that are carried out without an answer.
        self.unanswered = 0

    def __call__(self, name, arguments, now):
        return getattr(self, name)(arguments, now)

    def is_out(self, now):
        return self.outage and self.child_started and self.outage[0] <= now - self.child_started < self.outage[1]

    def DescribeMachine(self, _, now):
        return 0.1, {"Type": "STANDARD"}

    def Acquire(self, arguments, now):
        self.sequences.append(arguments["Payload"]["sequence"])
        if self.unanswered > 0:
            self.unanswered -= 1
            raise TaskError("States.Timeout", seconds=9)
        if self.looks > 0:
            self.looks -= 1
            lock = {"recordVersionNumber": str(self.looks), "ownerName": "another", "leaseDurationMs": 20_000}
            raise TaskError("LockHeld", json.dumps({"errorMessage": json.dumps({"lock": lock})}), seconds=0)
        return self.renew(arguments["Payload"], now)

    def StartChild(self, arguments, now):
        self.child_started = now
        self.child = f"arn:aws:states:eu-west-1:123456789012:execution:locked-export:{arguments['Name']}"
        self.started = self.child
        return 0.1, {"ExecutionArn": self.child}

    def AwaitEnd(self, arguments, now):
        assert arguments["Item"]["child"]["S"] == self.child, arguments
        if self.is_out(now):
            raise TaskError("DynamoDb.SdkClientException", seconds=9 if self.timeouts else 0.1)
        left = self.child_started + self.child_seconds - now
        if self.tells and left <= 0:
            raise TaskError("DynamoDb.ConditionalCheckFailedException")
        return left + 0.1 if self.tells else 10**9, {}

    def LookAtChild(self, arguments, now):
        assert arguments["ExecutionArn"] == self.started, arguments
        if self.is_out(now):
            raise TaskError("Sfn.SdkClientException", seconds=9 if self.timeouts else 0.1)
        return 0.1, {"Status": "RUNNING" if now < self.child_started + self.child_seconds else "SUCCEEDED"}

    def Heartbeat(self, arguments, now):
        self.sequences.append(arguments["Payload"]["sequence"])
        if self.is_out(now):
            raise TaskError("Lambda.ServiceException", seconds=9 if self.timeouts else 0.1)
        return self.renew(arguments["Payload"], now)

    def StopChild(self, _, now):
        # The child takes as long as the state allows.
        self.child_stopped = now + 5
        return 5, {}

    def FetchResult(self, _, now):
        return 0.1, {"Status": "SUCCEEDED", "Output": "{}"}

    def Release(self, _, now):
        return 0.1, {"Payload": {"outcome": "released"}}

    def StartCleanUp(self, _, now):
        return 0.1, {}

    def renew(self, payload, now):
        lease = payload["leaseDurationMs"]
        self.leases.append(lease)
        self.lease_end = now + lease / 1000
        return 0.1, {"Payload": {"leaseDurationMs": lease, "fencingToken": 1}}


def execution_of(service, **more):
    definition = json.loads((ROOT / "statemachines/run-under-lock.asl.json").read_text())
    return Execution(definition, {"key": "k", "stateMachineArn": MACHINE, **more}, service)


def run(child_seconds, lease_ms, **options):
    service = Service(child_seconds, **options)
    execution = execution_of(service, leaseDurationMs=lease_ms, maxWaitSeconds=4 * ALL_LOOKS, pollSeconds=4)
    outcome = execution.run()
    assert service.leases == sorted(service.leases), "a shorter lease was sent"
    assert service.sequences == sorted(set(service.sequences)), (
        "a new request has a number of its own, above the others"
    )
    return service, execution, outcome


def lasts(lease_ms, began):
    """The longest outage for a child of this age: the rest of the lease at the worst moment."""
    # A heartbeat is sent at least each quarter of the lease, so half of the lease certainly remains.
    lease = max(lease_ms / 1000, 4 * min(began / 60, 21_600))
    return lease / 2 - 20


def long_runs():
    print("  events of the history, of 25000, after the longest wait for the lock (1000 looks):")
    print("    child     lease    undisturbed   with one outage that is outlasted, of")
    for child_seconds in (600, HOUR, 12 * HOUR, 29 * DAY):
        for lease_ms in (6000, 60_000, 600_000):
            _, quiet, outcome = run(child_seconds, lease_ms, looks=ALL_LOOKS)
            assert outcome == ("SUCCEEDED", {}), outcome
            began = child_seconds / 2
            outage = max(0, lasts(lease_ms, began))
            _, disturbed, outcome = run(
                child_seconds, lease_ms, looks=ALL_LOOKS, outage=(began, began + outage), timeouts=False
            )
            assert outcome == ("SUCCEEDED", {}), (child_seconds, lease_ms, outage, outcome)
            print(
                f"    {child_seconds:>7} s {lease_ms / 1000:>6.0f} s {quiet.events:>9}     {disturbed.events:>9}"
                f"      {outage:.0f} s",
                flush=True,
            )


def many_outages():
    """A service that fails half of the time, in turns of a sixth of the lease, does not fill the history."""
    for child_seconds in (12 * HOUR, 29 * DAY):

        class Flapping(Service):
            def is_out(self, now):
                if not self.child_started:
                    return False
                age = now - self.child_started
                return age > 600 and int(age / max(10, age / 90)) % 2 == 1

        service = Flapping(child_seconds, timeouts=False)
        execution = execution_of(service)
        outcome = execution.run()
        assert outcome == ("SUCCEEDED", {}), outcome
        print(f"    {child_seconds:>7} s, failing half of the time: {execution.events} events")


def stops_in_time():
    """A service stays away: the child has stopped before an observer may take over."""
    for lease_ms in (60_000, 600_000):
        for child_seconds in (HOUR, 12 * HOUR, 29 * DAY):
            for began in (45, child_seconds / 3, child_seconds / 2 + 7, child_seconds * 0.9):
                service, _, outcome = run(child_seconds, lease_ms, outage=(began, 2 * child_seconds + 90_000))
                assert outcome == ("FAILED", "LockLost"), outcome
                left = service.lease_end - service.child_stopped
                # The child does not stop early either: the rest is the reserve, a second, and one round.
                assert 0 <= left <= 20 + 11 + max(lease_ms / 4000, 0), (lease_ms, child_seconds, began, left)


def repeats_keep_their_number():
    """An acquire without an answer is repeated under its number, after every look."""
    for looks in (0, 3):
        service = Service(60, looks=looks)
        service.unanswered = 2
        outcome = execution_of(service).run()
        assert outcome == ("SUCCEEDED", {}), outcome
        first, *others = service.sequences
        assert others[:2] == [first, first], service.sequences
        assert others[1:] == list(range(first, first + len(others) - 1)), service.sequences


def end_is_noticed():
    """The end of a child is noticed at once where EventBridge tells it; otherwise by a look, half of its time later."""
    for child_seconds in (1, 30, 600, HOUR, DAY):
        service, execution, outcome = run(child_seconds, 60_000)
        assert outcome == ("SUCCEEDED", {}), outcome
        late = execution.now - service.child_started - child_seconds
        # An expression of the definition may be due for a look, which comes after the usual pause.
        pause = max(15, child_seconds / 60)
        assert late < pause + 5, (child_seconds, late)
        service, execution, outcome = run(child_seconds, 60_000, tells=False)
        assert outcome == ("SUCCEEDED", {}), outcome
        late = execution.now - service.child_started - child_seconds
        assert late <= max(60, child_seconds / 2) + 2 * pause + 5, (child_seconds, late)


def transitions():
    """Prints the price of waiting: the states that a run enters, which is what AWS counts."""
    print(
        "  state transitions of a run under a lock of 60 s, and their price for a million at 0.025 USD for a thousand:"
    )
    for child_seconds in (1, 60, 600, HOUR, DAY):
        _, execution, _ = run(child_seconds, 60_000)
        entered = len(execution.entered)
        rounds = [name for name, _ in execution.entered].count("Heartbeat")
        print(f"    a child of {child_seconds:>6} s: {entered:>5} ({rounds} heartbeats), {entered * 25:>7} USD")


def keeps_the_lock_of_a_child_that_goes_on():
    """A child that cannot be stopped may be at work: its lock ends with its lease."""

    class Unstoppable(Service):
        def StopChild(self, _, now):
            raise TaskError("Sfn.AccessDeniedException")

        def Release(self, _, now):
            raise AssertionError("released beside a child that goes on")

    assert execution_of(Unstoppable(2 * HOUR, outage=(600, DAY))).run() == ("FAILED", "ChildNotStopped")


def stops_a_stranger():
    """An execution of another name than the lock's is stopped under its own name, before the lock is released."""

    class Renamed(Service):
        def StartChild(self, arguments, now):
            answer = super().StartChild(arguments, now)
            self.started = answer[1]["ExecutionArn"] + "-renamed"
            return answer[0], {"ExecutionArn": self.started}

        def StopChild(self, arguments, now):
            assert arguments["ExecutionArn"] == self.started, arguments
            return super().StopChild(arguments, now)

        def Release(self, arguments, now):
            assert self.child_stopped, "released before the stranger was stopped"
            return super().Release(arguments, now)

    assert execution_of(Renamed(HOUR)).run() == ("FAILED", "InvalidRequest")


if __name__ == "__main__":
    assert MAX_EVENTS == 25_000
    long_runs()
    many_outages()
    stops_in_time()
    end_is_noticed()
    transitions()
    repeats_keep_their_number()
    keeps_the_lock_of_a_child_that_goes_on()
    stops_a_stranger()
    print("  the child is stopped before the lease is over, whenever the service stops answering")
