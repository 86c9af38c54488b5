"""Tests in virtual time which locks the clean-up finds in the history of an execution, as AWS writes it.

Called by step-functions.sh. The local AWS keeps no requests in its histories, and has no distributed Map.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
from virtual_time import Execution, TaskError

ROOT = pathlib.Path(__file__).parent.parent
ARN = "arn:aws:states:eu-west-1:123456789012:execution:nightly:1"
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:locked-export"


class Service:
    """Answers the clean-up's tasks: a history by pages, and releases."""

    def __init__(self, *pages):
        self.pages, self.looks, self.released = pages, [], []

    def __call__(self, name, arguments, now):
        return getattr(self, name)(arguments)

    def StopChild(self, _):
        return 0.1, {}

    def ReadHistory(self, arguments):
        assert arguments["ExecutionArn"] == ARN, arguments
        number = int(arguments.get("NextToken", 0))
        self.looks.append(number)
        if isinstance(self.pages[number], TaskError):
            raise self.pages[number]
        more = {"NextToken": str(number + 1)} if number + 1 < len(self.pages) else {}
        return 0.1, {"Events": self.pages[number], **more}

    def Release(self, arguments):
        self.released.append(json.loads(arguments["Payload"]["detail"]["input"]))
        return 0.1, {"Payload": {}}


def clean_up(service, given, **detail):
    """Returns the ending of a clean-up after an execution with this input, and what it released in the first pass."""
    definition = (ROOT / "statemachines/cleanup.asl.json").read_text().replace("${LateRequestSeconds}", "60")
    event = {"detail": {"executionArn": ARN, "status": "ABORTED", "input": json.dumps(given), **detail}}
    status, value = Execution(json.loads(definition), event, service).run()
    first, second = service.released
    assert first == second, (first, second)
    return (status if status == "SUCCEEDED" else value), first.get("locks", [])


def asked(key, arn=ARN, **fields):
    """The request of a task, in the history of an execution."""
    secret = {"secret": fields.pop("secret")} if "secret" in fields else {}
    payload = {"action": "acquire", "key": key, "execution": {"arn": arn, "acquisition": "1", **secret}, **fields}
    parameters = json.dumps({"FunctionName": "invoke", "Payload": payload})
    return {"Type": "TaskScheduled", "TaskScheduledEventDetails": {"Resource": "invoke", "Parameters": parameters}}


def entered(**given):
    details = {"Name": "LockPrepare", "Input": json.dumps(given)}
    return {"Type": "PassStateEntered", "StateEnteredEventDetails": details}


def answered(**payload):
    details = {"Resource": "invoke", "Output": json.dumps({"Payload": payload})}
    return {"Type": "TaskSucceeded", "TaskSucceededEventDetails": details}


A_MAP = {"Type": "MapStateEntered", "StateEnteredEventDetails": {"Name": "EachKey", "Input": '["a"]'}}
# A history without the data of requests.
SCHEDULED = {"Type": "TaskScheduled", "TaskScheduledEventDetails": {"Resource": "invoke"}}


def keys_of_all_pages():
    """The keys of all requests of this execution, on all pages, each once, and with their sort keys."""
    service = Service([asked("a"), asked("b", sortKey="x")], [asked("a"), asked("c", arn="another"), entered(key="d")])
    ending, locks = clean_up(service, {"keys": ["a", "b"]})
    assert ending == "SUCCEEDED", ending
    assert locks == [{"key": "a"}, {"key": "b", "sortKey": "x"}, {"key": "d"}], locks
    assert service.looks == [0, 1, 0, 1], service.looks


def grants():
    """The key of a grant, where the history has no requests."""
    assert clean_up(Service([A_MAP, SCHEDULED, answered(key="a")]), ["a"]) == ("SUCCEEDED", [{"key": "a"}])


def key_of_the_input():
    """The input's key is released once, with the others and under its secret."""
    service = Service([asked("b", secret="s3"), entered(key="a")])
    assert clean_up(service, {"key": "a", "leaseSecret": "s3"}) == ("SUCCEEDED", [{"key": "a"}, {"key": "b"}])
    assert service.released[0]["leaseSecret"] == "s3", service.released
    assert clean_up(Service([asked("b")]), {"key": "a", "sortKey": "x"})[1] == [
        {"key": "a", "sortKey": "x"},
        {"key": "b"},
    ]


def nothing_else():
    """Inputs, answers and requests that name no key are no locks."""
    others = [entered(key=7), entered(key=""), entered(key="a", sortKey=1), entered(), answered(outcome="released")]
    assert clean_up(Service(others), {"key": "mine"}) == ("SUCCEEDED", [])


def no_history_where_locks_are_named():
    """An input with locks, a child under a lock, and one acquisition need no history."""
    for given, detail in (
        ({"locks": [{"key": "a"}]}, {}),
        ({"key": "a", "stateMachineArn": MACHINE}, {}),
        ({"key": "a"}, {"acquisition": "1"}),
    ):
        service = Service([asked("b")])
        ending, locks = clean_up(service, given, **detail)
        assert (ending, locks, service.looks) == ("SUCCEEDED", given.get("locks", []), []), (given, locks)


def unknown_locks():
    """What is known is released. Then the clean-up fails where there may be more."""
    for events, given in (
        ([asked("a", secret="another")], {"leaseSecret": "s3"}),
        ([asked("a")], {"leaseSecret": "s3"}),
        ([asked("a", secret="s3")], {}),
        ([A_MAP, entered(key="a"), SCHEDULED], {}),
    ):
        ending, locks = clean_up(Service(events), given)
        assert (ending, locks) == ("LocksUnknown", [{"key": "a"}]), (events, ending, locks)
    assert clean_up(Service([asked("a", secret="s3")]), {"leaseSecret": "s3"}) == ("SUCCEEDED", [{"key": "a"}])
    assert clean_up(Service([entered(key="a"), SCHEDULED]), {}) == ("SUCCEEDED", [{"key": "a"}])
    map_run = {"Type": "MapRunStarted", "MapRunStartedEventDetails": {"MapRunArn": "one"}}
    assert clean_up(Service([map_run], [asked("a")]), {}) == ("LocksUnknown", [{"key": "a"}])
    refused = TaskError("Sfn.AccessDeniedException")
    assert clean_up(Service(refused), {"key": "a"}) == ("LocksUnknown", [])


if __name__ == "__main__":
    for story in (
        keys_of_all_pages,
        grants,
        key_of_the_input,
        nothing_else,
        no_history_where_locks_are_named,
        unknown_locks,
    ):
        story()
        print(f"  {story.__name__}: {story.__doc__}")
