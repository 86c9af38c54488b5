"""The stories of docs/step-functions.md, with the real state machines and the real functions on a local AWS.

Called by step-functions.sh, with the local AWS at AWS_ENDPOINT_URL. Arguments: names of stories; without, all of them.
Leases are measured in real time, and are therefore short. Several stories run at a time, each with its own keys.
"""

import io
import itertools
import json
import pathlib
import sys
import time
import traceback
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import botocore.session
from botocore.config import Config

ROOT = pathlib.Path(__file__).parent.parent
TABLE = "leasehold"
MARKS = "marks"
WAITERS = "waiters"
CHILDREN = "children"
LATE_REQUEST_SECONDS = 6
# Stories spend their time in waits.
STORIES_AT_A_TIME = 5
# With a wait of an hour, the default, the waiter looks only each fourth second.
SOON = {"pollSeconds": 1, "maxWaitSeconds": 100}
# The local AWS checks no permissions; only a real account shows that the roles suffice.
ROLE = "arn:aws:iam::000000000000:role/unchecked"

# The names of the local AWS that differ from those of AWS.
LOCAL_NAMES = {
    "StepFunctions.ExecutionAlreadyExistsException": "ExecutionAlreadyExists",
    "Sfn.ExecutionDoesNotExistException": "Sfn.ExecutionDoesNotExist",
    "Sfn.TaskDoesNotExistException": "Sfn.TaskDoesNotExist",
}


def client(name):
    return botocore.session.get_session().create_client(
        name,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(read_timeout=60, max_pool_connections=2 * STORIES_AT_A_TIME),
    )


dynamodb, functions, sfn, events, pipes, kms = (
    client(name) for name in ("dynamodb", "lambda", "stepfunctions", "events", "pipes", "kms")
)
arns = {}

# The endings that may leave a lock held, as the stack's rule has them. An execution that fails by one of the
# definitions' own Fail states has released its lock; the errors named here are those that no state catches.
CLEAN_UP_ENDINGS = {
    "$or": [
        {"status": ["ABORTED", "TIMED_OUT"]},
        {
            "status": ["FAILED"],
            "error": [None, {"exists": False}, {"prefix": "States."}, "ChildNotStopped", "LockNotReleased"],
        },
    ]
}

CLEANED_UP = (
    "run-under-lock",
    "mutex",
    "unreachable-run",
    "unreachable-mutex",
    "failing-mutex",
    "three-turns",
    "many-keys",
    "twice",
    "permits",
)

# The stack


def make_stack():
    for name in (TABLE, MARKS):
        dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    dynamodb.create_table(
        TableName=CHILDREN,
        KeySchema=[{"AttributeName": "child", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "child", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    waiters = dynamodb.create_table(
        TableName=WAITERS,
        KeySchema=[{"AttributeName": "lock", "KeyType": "HASH"}, {"AttributeName": "waiter", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("lock", "waiter")],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    )
    locks = dynamodb.update_table(
        TableName=TABLE, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    )
    key = kms.create_key(KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
    arns["execution-key"] = key["KeyMetadata"]["Arn"]
    for name in ("invoke", "cleanup"):
        arns[name] = make_function(name, name)
    # A story shuts this one in mid-work.
    arns["unreachable"] = make_function("unreachable", "invoke")
    # A child that knows nothing of locks: a mark, some work, a mark.
    make_machine("child", child())
    make_machine("failing-child", one_state({"Type": "Fail", "Error": "OutOfPaper", "Cause": "Tray 2"}))
    make_machine("cleanup-machine", definition("cleanup"))
    make_machine("child-ended", definition("child-ended"))
    make_machine("run-under-lock", awaiting(definition("run-under-lock"), 1))
    make_machine("patient-run", awaiting(definition("run-under-lock"), 60))
    make_machine("late-run", waits_late(awaiting(definition("run-under-lock"), 60)))
    make_machine("mutex", with_work(definition("mutex"), child()))
    make_machine("unreachable-run", awaiting(definition("run-under-lock", invoke="unreachable"), 1))
    make_machine("unreachable-mutex", with_work(definition("mutex", invoke="unreachable"), child()))
    make_machine("failing-mutex", with_work(definition("mutex"), one_state({"Type": "Fail", "Error": "OutOfPaper"})))
    make_machine("three-turns", in_a_map(with_work(definition("mutex"), child(" & $string($states.input.turn)"))))
    make_machine("many-keys", over_keys(with_work(definition("mutex"), child(" & $string($states.input.key)"))))
    make_machine("twice", twice(with_work(definition("mutex"), child())))
    make_machine("express-child", one_state({"Type": "Succeed"}), type="EXPRESS")
    make_machine("waker", definition("waker", waits=True))
    make_machine("sleeper", sleeping(with_work(definition("mutex", waits=True), child()), 30))
    make_machine("short-sleeper", sleeping(with_work(definition("mutex", waits=True), child()), 4))
    make_machine("sleeps-at-once", sleeps_at_once(sleeping(with_work(definition("mutex", waits=True), child()), 30)))
    for name, seconds in (("permits", 30), ("short-permits", 3)):
        make_machine(
            name,
            sleeping(
                with_work(definition("semaphore", waits=True), child(), "WithPermits", "PermitsStillMine"), seconds
            ),
        )
    make_machine("polled-permits", with_work(definition("semaphore"), child(), "WithPermits", "PermitsStillMine"))
    make_machine(
        "recorded-permits",
        records_requests(with_work(definition("semaphore"), child(), "WithPermits", "PermitsStillMine")),
    )
    make_machine(
        "enters-at-once", enters_at_once(with_work(definition("semaphore"), child(), "WithPermits", "PermitsStillMine"))
    )
    for table in (waiters, locks):
        described = table["TableDescription"]
        pipes.create_pipe(
            Name=described["TableName"],
            Source=described["LatestStreamArn"],
            Target=arns["waker"],
            RoleArn=ROLE,
            SourceParameters={"DynamoDBStreamParameters": {"StartingPosition": "LATEST"}},
        )
    events.put_rule(
        Name="leasehold-cleanup",
        EventPattern=json.dumps(
            {
                "source": ["aws.states"],
                "detail-type": ["Step Functions Execution Status Change"],
                "detail": {
                    "stateMachineArn": [arns[name] for name in CLEANED_UP],
                    **CLEAN_UP_ENDINGS,
                },
            }
        ),
    )
    target = {"Id": "cleanup", "Arn": arns["cleanup-machine"], "RoleArn": ROLE}
    events.put_targets(Rule="leasehold-cleanup", Targets=[target])
    children = {
        "stateMachineArn": [{"wildcard": arns["child"].replace(":child", ":*child*")}],
        "name": [{"prefix": "leasehold-"}],
    }
    put_rule_of_children(
        {**children, "status": ["RUNNING"], "redriveCount": [{"numeric": [">", 0]}]},
        "cleanup-machine",
        '{"detail": {"executionArn": <arn>, "status": "RUNNING", "input": "{}"}}',
    )
    put_rule_of_children(
        {**children, "status": ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"]},
        "child-ended",
        '{"detail": {"executionArn": <arn>}}',
    )


def put_rule_of_children(detail, machine, template):
    """A rule about changes of children, as the stack has it. Stories cannot send events of AWS's own source."""
    pattern = {
        "source": ["aws.states", "story"],
        "detail-type": ["Step Functions Execution Status Change"],
        "detail": detail,
    }
    events.put_rule(Name=f"to-{machine}", EventPattern=json.dumps(pattern))
    transformer = {"InputPathsMap": {"arn": "$.detail.executionArn"}, "InputTemplate": template}
    target = {"Id": "one", "Arn": arns[machine], "RoleArn": ROLE, "InputTransformer": transformer}
    events.put_targets(Rule=f"to-{machine}", Targets=[target])


def make_function(name, handler):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
        bootstrap = zipfile.ZipInfo("bootstrap")
        bootstrap.external_attr = 0o755 << 16
        zipped.writestr(bootstrap, (ROOT / "target/debug/leasehold-locks").read_bytes(), zipfile.ZIP_DEFLATED, 1)
    made = functions.create_function(
        FunctionName=f"leasehold-{name}",
        Runtime="provided.al2023",
        Handler=handler,
        Role=ROLE,
        Timeout=10,
        Code={"ZipFile": archive.getvalue()},
        Environment={"Variables": {"LEASEHOLD_TABLE_NAME": TABLE, "LEASEHOLD_EXECUTION_KEY": arns["execution-key"]}},
    )
    return made["FunctionArn"]


def definition(name, waits=False, invoke="invoke"):
    text = (ROOT / f"statemachines/{name}.asl.json").read_text()
    for placeholder, value in {
        "InvokeFunctionArn": arns[invoke],
        "SemaphoreFunctionArn": arns[invoke],
        "CleanupFunctionArn": arns["cleanup"],
        "CleanupStateMachineArn": arns.get("cleanup-machine", ""),
        "LateRequestSeconds": str(LATE_REQUEST_SECONDS),
        "Partition": "aws",
        "TableName": TABLE,
        "PartitionKeyName": "key",
        "SortKeyName": "",
        "WaitersTableName": WAITERS if waits else "",
        "ChildrenTableName": CHILDREN,
    }.items():
        text = text.replace("${" + placeholder + "}", value)
    for real, local in LOCAL_NAMES.items():
        text = text.replace(f'"{real}"', f'"{local}"')
    assert "${" not in text, text
    return json.loads(text)


def child(place=""):
    """Marks its beginning and its end, under the execution's ARN and the place in it."""
    mark: dict[str, Any] = {
        "Type": "Task",
        "Resource": "arn:aws:states:::dynamodb:updateItem",
        "Arguments": {
            "TableName": MARKS,
            "Key": {"key": {"S": "{% $states.context.Execution.Id" + place + " %}"}},
            "ExpressionAttributeValues": {":now": {"N": "{% $string($millis()) %}"}},
        },
        "Output": "{% $states.input %}",
    }

    def marked(name, following):
        arguments = {
            **mark["Arguments"],
            "UpdateExpression": "SET #at = :now",
            "ExpressionAttributeNames": {"#at": name},
        }
        return {**mark, "Arguments": arguments, **following}

    return {
        "QueryLanguage": "JSONata",
        "StartAt": "Start",
        "States": {
            "Start": marked("began", {"Next": "Work"}),
            "Work": {"Type": "Wait", "Seconds": "{% $states.input.seconds %}", "Next": "End"},
            "End": marked("ended", {"Next": "Result"}),
            "Result": {"Type": "Pass", "Output": {"did": "{% $states.input %}"}, "End": True},
        },
    }


def one_state(state):
    return {"QueryLanguage": "JSONata", "StartAt": "Only", "States": {"Only": state}}


def with_work(mutex, work, holding="Locked", heartbeat="LockStillMine"):
    """Returns the definition with an author's own states in place of YourWork."""
    branch = mutex["States"][holding]["Branches"][0]
    del branch["States"]["YourWork"]
    for state in work["States"].values():
        if state.pop("End", False):
            state["Next"] = heartbeat
    branch["StartAt"] = work["StartAt"]
    branch["States"] |= work["States"]
    return mutex


def in_a_map(machine):
    """The steps as the iteration of an inline Map: three times on the execution's one key."""
    iterations = {
        "Type": "Map",
        "Items": "{% $map([1..3], function($turn) { $merge([$states.input, {'turn': $turn}]) }) %}",
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, **without_language(machine)},
        "End": True,
    }
    return one_state(iterations)


def over_keys(machine):
    """The steps as the iteration of a Map, once for each of the execution's keys."""
    iterations = {
        "Type": "Map",
        "Items": "{% $map($states.input.keys, function($key) { $merge([$states.input, {'key': $key}]) }) %}",
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, **without_language(machine)},
        "End": True,
    }
    return one_state(iterations)


def twice(machine):
    """The steps once, and the same steps again, in a loop of one execution."""
    states = machine["States"]
    states["Begin"] = {"Type": "Pass", "Assign": {"turn": 1}, "Next": "LockPrepare"}
    states["Done"] = {
        "Type": "Pass",
        "Assign": {"turn": "{% $turn + 1 %}"},
        "Output": "{% $states.input[0].did %}",
        "Next": "Again",
    }
    states["Again"] = {
        "Type": "Choice",
        "Choices": [{"Condition": "{% $turn <= 2 %}", "Next": "LockPrepare"}],
        "Default": "Twice",
    }
    states["Twice"] = {"Type": "Succeed"}
    return {**machine, "StartAt": "Begin"}


def sleeping(machine, seconds):
    """Returns the definition with a fixed sleep: the local AWS takes no expression for the time-out of a state."""
    for state in machine["States"].values():
        if state.get("Resource", "").endswith(".waitForTaskToken"):
            state["TimeoutSeconds"] = seconds
        for choice in state.get("Choices", []):
            for name in choice.get("Assign", {}):
                choice["Assign"][name] = seconds
    return machine


def awaiting(machine, seconds):
    """Returns the definition with a fixed time between heartbeats."""
    machine["States"]["AwaitEnd"]["TimeoutSeconds"] = seconds
    return machine


def waits_late(machine):
    """Returns the definition for a child that ends before the execution waits for it."""
    states = machine["States"]
    states["StartChild"]["Next"] = "Dawdle"
    states["Dawdle"] = {"Type": "Wait", "Seconds": 5, "Next": "AwaitEnd"}
    return machine


def sleeps_at_once(machine):
    """Returns the definition for a lock that is released between the refusal and the sleep."""
    machine["States"]["LockPrepare"]["Next"] = "LockMayWait"
    return machine


def enters_at_once(machine):
    """Returns the definition for permits that come free between the refusal and the request for a ticket."""
    machine["States"]["PermitsPrepare"]["Next"] = "PermitsEnqueue"
    return machine


def records_requests(machine):
    """Returns the definition with the payloads of all requests for permits and tickets as its output."""
    states = machine["States"]
    states["PermitsPrepare"]["Assign"]["requests"] = []
    states["Done"]["Output"] = "{% $requests %}"
    for name in ("PermitsAcquire", "PermitsEnqueue"):
        payload = states[name]["Arguments"]["Payload"].removeprefix("{%").removesuffix("%}")
        for outcome in (states[name], *states[name]["Catch"]):
            outcome["Assign"]["requests"] = f"{{% $append($requests, [{payload}]) %}}"
    return machine


def without_language(machine):
    return {name: value for name, value in machine.items() if name not in ("QueryLanguage", "Comment")}


def make_machine(name, machine, **options):
    made = sfn.create_state_machine(name=name, definition=json.dumps(machine), roleArn=ROLE, **options)
    arns[name] = made["stateMachineArn"]


# The helpers of the stories


def start(machine, name=None, **arguments):
    name = name or f"{machine}-{uuid.uuid4()}"
    return sfn.start_execution(stateMachineArn=arns[machine], name=name, input=json.dumps(arguments))["executionArn"]


def run_under_lock(key, seconds=1, child="child", machine="run-under-lock", **arguments):
    work = {"stateMachineArn": arns[child], "input": {"seconds": seconds}, "leaseDurationMs": 6000}
    return start(machine, **{"key": key, **SOON, **work, **arguments})


def mutex(key, seconds=0, machine="mutex", **arguments):
    return start(machine, **{"key": key, **SOON, "seconds": seconds, **arguments})


def child_of(execution):
    """The child's ARN, from the history, so that its derivation is tested and not repeated here."""
    return wait_for("the child", lambda: children_of(execution))[0]


def children_of(execution):
    history = sfn.get_execution_history(executionArn=execution, maxResults=1000)["events"]
    outputs = [event["taskSucceededEventDetails"] for event in history if "taskSucceededEventDetails" in event]
    return [
        json.loads(details["output"])["ExecutionArn"]
        for details in outputs
        if details["resource"].endswith("startExecution")
    ]


def wait_for(what, look, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return found


def end_of(execution, seconds=120):
    def ended():
        described = sfn.describe_execution(executionArn=execution)
        return described if described["status"] != "RUNNING" else None

    return wait_for(f"the end of {execution}", ended, seconds)


def succeeded(execution, seconds=120):
    described = end_of(execution, seconds)
    assert described["status"] == "SUCCEEDED", described
    return json.loads(described["output"])


def failed(execution, error, seconds=120):
    described = end_of(execution, seconds)
    assert (described["status"], described.get("error")) == ("FAILED", error), described
    return described.get("cause", "")


def marks(execution):
    item = dynamodb.get_item(TableName=MARKS, Key={"key": {"S": execution}}, ConsistentRead=True).get("Item", {})
    return {name: int(value["N"]) for name, value in item.items() if name != "key"}


class Refused(Exception):
    pass


def invoke(action, key, **fields):
    return functions_invoke({"action": action, "key": key, **fields})


def acquire_as(execution, key, acquisition, **more):
    """Sends an acquire as the execution does, such as a delayed copy."""
    named = {"arn": execution, "acquisition": acquisition, **more}
    return invoke("acquire", key, ownerName="late", execution=named, leaseDurationMs=600_000)


def functions_invoke(payload, name="invoke"):
    answer = functions.invoke(FunctionName=f"leasehold-{name}", Payload=json.dumps(payload))
    body = json.loads(answer["Payload"].read())
    if "FunctionError" in answer:
        raise Refused(body["errorType"])
    return body


def acquire(key, lease_id, **fields):
    return invoke("acquire", key, ownerName="someone", leaseId=lease_id, **fields)


def state(key):
    for _ in range(10):
        try:
            return invoke("get", key)["state"]
        except Refused as refusal:
            if str(refusal) == "LockNotFound":
                return "absent"
            # On a busy machine the local AWS may answer later than the function waits.
            assert str(refusal) == "Unavailable", refusal
    raise AssertionError(f"{key}: no answer in ten looks")


def wait_until_free(key, seconds=60):
    wait_for(f"{key} to be free", lambda: state(key) == "released", seconds)


def clean_ups(execution):
    """The clean-up executions that this execution's end started."""
    found = []
    for summary in sfn.list_executions(stateMachineArn=arns["cleanup-machine"], maxResults=1000)["executions"]:
        described = sfn.describe_execution(executionArn=summary["executionArn"])
        if json.loads(described["input"])["detail"]["executionArn"] == execution:
            found.append(described)
    return found


# The stories


def uncontended():
    """The child's output is returned, its input may carry the fencing token, and the lock is free again."""
    execution = run_under_lock("quiet", fencingTokenAs="token")
    did = succeeded(execution)["did"]
    assert did["seconds"] == 1 and did["token"] > 1.7e15, did
    assert set(marks(child_of(execution))) == {"began", "ended"}
    assert state("quiet") == "released"

    execution = mutex("quiet", seconds=1)
    assert succeeded(execution)["did"]["key"] == "quiet"
    assert set(marks(execution)) == {"began", "ended"}
    assert state("quiet") == "released"


def contended():
    """The second waits for the first, for longer than a lease: one uses run-under-lock, the other the mutex steps."""
    first = run_under_lock("busy", seconds=9)
    child = child_of(first)
    second = mutex("busy")
    succeeded(first)
    succeeded(second)
    assert marks(second)["began"] >= marks(child)["ended"], (marks(child), marks(second))


def holder_killed():
    """A holder that heartbeats is waited for, however long; a dead one for one lease from its last heartbeat on."""
    acquire("killed", "a function", leaseDurationMs=6000)
    execution = mutex("killed")
    for _ in range(4):
        # The pause is longer than the waiter's polls, so that the waiter sees each version several times, and shorter
        # than the lease.
        time.sleep(4)
        last_heartbeat = time.time() * 1000
        invoke("heartbeat", "killed", leaseId="a function")
    succeeded(execution)
    waited = marks(execution)["began"] - last_heartbeat
    assert 6000 <= waited < 30000, waited
    try:
        invoke("heartbeat", "killed", leaseId="a function")
        raise AssertionError("the dead holder still has the lock")
    except Refused as refusal:
        assert str(refusal) == "LockLost", refusal


def map_takes_turns():
    """Three iterations of an inline Map on one key run one after the other, and each releases its own acquisition."""
    execution = start("three-turns", key="map", seconds=1, **SOON)
    assert [turn["did"]["turn"] for turn in succeeded(execution)] == [1, 2, 3]
    spans = sorted((mark["began"], mark["ended"]) for mark in (marks(f"{execution}{turn}") for turn in (1, 2, 3)))
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert began >= ended, spans
    assert state("map") == "released"


def one_execution_locks_twice():
    """A loop acquires the same lock a second time, by an acquisition of its own."""
    execution = start("twice", key="twice", seconds=0, **SOON)
    succeeded(execution)
    assert state("twice") == "released"
    tokens = invoke("get", "twice")["fencingToken"]
    assert tokens > 1.7e15, tokens


def release_unreachable():
    """A release that cannot be delivered starts the clean-up; result and error of the work stay as they are."""
    long_lease = {"leaseDurationMs": 600_000}
    wrapped = run_under_lock("unreachable", seconds=20, machine="unreachable-run", **long_lease)
    steps = mutex("unreachable too", seconds=20, machine="unreachable-mutex", **long_lease)
    wait_for("the work", lambda: state("unreachable") == state("unreachable too") == "held")
    child = child_of(wrapped)
    wait_for("the marks", lambda: marks(child) and marks(steps))
    # A concurrency of zero stands for a throttled account, where no invocation is let through.
    functions.put_function_concurrency(FunctionName="leasehold-unreachable", ReservedConcurrentExecutions=0)
    try:
        assert "did" in succeeded(wrapped, 180)
        ending = end_of(steps, 180)
        assert ending["status"] == "FAILED" and ending["error"].startswith("Lambda."), ending
    finally:
        functions.delete_function_concurrency(FunctionName="leasehold-unreachable")
    for key in ("unreachable", "unreachable too"):
        wait_until_free(key)
    for execution in (wrapped, steps):
        [clean_up] = clean_ups(execution)
        assert passes(succeeded_arn(clean_up))[0] == "released"


def express_child_refused():
    """An Express state machine is refused before the lock is asked for."""
    execution = run_under_lock("express", child="express-child")
    assert "Express" in failed(execution, "InvalidRequest")
    assert state("express") == "absent"


def no_clean_up_without_a_lock():
    """An execution that held nothing, or has released what it held, starts no clean-up."""
    acquire("busy elsewhere", "a function", leaseDurationMs=600_000)
    gave_up = run_under_lock("busy elsewhere", maxWaitSeconds=1)
    failed(gave_up, "LockHeld")
    refused = mutex("")
    failed(refused, "InvalidRequest")
    work_failed = run_under_lock("work failed", child="failing-child")
    failed(work_failed, "OutOfPaper")
    stopped = mutex("stopped", seconds=60)
    wait_for("the work", lambda: state("stopped") == "held")
    sfn.stop_execution(executionArn=stopped)
    wait_for("the clean-up of the aborted one", lambda: clean_ups(stopped))
    for execution in (gave_up, refused, work_failed):
        assert clean_ups(execution) == [], execution


def gives_up():
    """The wait is bounded, and its end names the holder."""
    acquire("taken", "a function", leaseDurationMs=600_000)
    for machine, more in (("run-under-lock", {"stateMachineArn": arns["child"]}), ("mutex", {})):
        execution = start(machine, key="taken", maxWaitSeconds=2, pollSeconds=1, seconds=0, **more)
        assert "someone" in failed(execution, "LockHeld")


def lost_in_mid_work():
    """An operator breaks the lock: the child is stopped; the mutex steps notice after the work. Error: LockLost."""
    wrapped = run_under_lock("broken", seconds=60)
    steps = mutex("broken too", seconds=12)
    # First the lock whose work ends by itself.
    for key in ("broken too", "broken"):
        wait_for("the work", lambda key=key: state(key) == "held")
        break_lock(key)
        child = child_of(wrapped)
    assert "released" in failed(wrapped, "LockLost")
    described = end_of(child)
    assert (described["status"], described["error"]) == ("ABORTED", "LockLost"), described
    assert "ended" not in marks(child)
    failed(steps, "LockLost")


def break_lock(key):
    """Breaks a lock as an operator: reads it, breaks the version that was seen, and tries again after a faster
    heartbeat."""

    def broken():
        try:
            return invoke("break", key, recordVersionNumber=invoke("get", key)["recordVersionNumber"])
        except Refused:
            return None

    wait_for("the break", broken)


def work_fails():
    """The work's own error is returned, and the lock is free again."""
    assert failed(run_under_lock("failing", child="failing-child"), "OutOfPaper") == "Tray 2"
    failed(start("failing-mutex", key="failing too"), "OutOfPaper")
    stopped = run_under_lock("stopping", seconds=60)
    sfn.stop_execution(executionArn=child_of(stopped))
    assert "ABORTED" in failed(stopped, "ChildAborted")
    for key in ("failing", "failing too", "stopping"):
        assert state(key) == "released", key


def wrong_input():
    """An invalid request fails at once, under that name."""
    for execution in (mutex(""), run_under_lock("hasty", leaseDurationMs=1)):
        failed(execution, "InvalidRequest", 60)
        assert failures(execution, "InvalidRequest") == 1, "it is not tried again"


def repeated_start():
    """A start that is repeated after its answer was lost finds the child, and starts no second one."""
    name = f"repeated-{uuid.uuid4()}"
    first = run_under_lock("repeated", name=name)
    child = child_of(first)
    succeeded(first)
    runs = sfn.list_executions(stateMachineArn=arns["child"], maxResults=1000)["executions"]
    assert [run["executionArn"] for run in runs].count(child) == 1
    # The same execution again, as after a lost answer. Only its name determines the child's name.
    again = awaiting(definition("run-under-lock"), 1)
    again["States"]["Prepare"]["Assign"]["child"] = {"name": child.rsplit(":", 1)[1], "arn": child}
    make_machine("run-again", again)
    execution = start("run-again", key="repeated", stateMachineArn=arns["child"], input={"seconds": 1})
    assert succeeded(execution)["did"]["seconds"] == 1
    after = sfn.list_executions(stateMachineArn=arns["child"], maxResults=1000)["executions"]
    assert [run["executionArn"] for run in after].count(child) == 1


def aborted():
    """The clean-up stops the child and releases the lock; it does not wait for the lease, which is long here."""
    wrapped = run_under_lock("aborted", seconds=60, leaseDurationMs=600_000)
    steps = mutex("aborted too", seconds=60)
    child = child_of(wrapped)
    wait_for("the work", lambda: marks(child) and marks(steps))
    acquisition = invoke("get", "aborted")["attributes"]["executionAcquisition"]
    for execution in (wrapped, steps):
        sfn.stop_execution(executionArn=execution)
    for key in ("aborted", "aborted too"):
        wait_until_free(key)
    assert end_of(child)["status"] == "ABORTED"
    # A late copy of its acquire is refused: its lease id had its one acquisition.
    try:
        acquire_as(wrapped, "aborted", acquisition)
        raise AssertionError("a ghost holds the lock")
    except Refused as refusal:
        assert str(refusal) == "LockLost", refusal


def end_of_a_child_wakes():
    """The end of a child ends the wait for it, long before the next heartbeat; nobody looks at the child."""
    for child in ("child", "failing-child"):
        execution = run_under_lock("wakes", seconds=3, child=child, machine="patient-run", leaseDurationMs=600_000)
        assert end_of(execution, 100)["status"] == ("SUCCEEDED" if child == "child" else "FAILED")
        assert entered(execution, "Heartbeat", "LookAtChild") == 0
        assert state("wakes") == "released"


def end_before_the_wait_is_not_missed():
    """A child ends before the execution waits for it: the condition refuses the token, and there is no wait."""
    execution = run_under_lock("late wait", child="failing-child", machine="late-run", leaseDurationMs=600_000)
    failed(execution, "OutOfPaper", 100)
    assert entered(execution, "Heartbeat", "LookAtChild") == 0


def redriven_child_is_stopped():
    """The event that a child was redriven stops it, and no other execution. The local AWS has no redrive."""
    children = [start("child", name, seconds=60) for name in (f"leasehold-{uuid.uuid4()}", f"mine-{uuid.uuid4()}")]
    first_run = start("child", f"leasehold-{uuid.uuid4()}", seconds=3)
    for child, redrives in ((children[0], 1), (children[1], 1), (first_run, 0)):
        detail = {
            "executionArn": child,
            "stateMachineArn": arns["child"],
            "name": child.rsplit(":", 1)[1],
            "status": "RUNNING",
            "input": '{"seconds": 60}',
            "redriveCount": redrives,
        }
        entry = {
            "Source": "story",
            "DetailType": "Step Functions Execution Status Change",
            "Detail": json.dumps(detail),
        }
        assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
    described = end_of(children[0], 30)
    assert (described["status"], described["error"]) == ("ABORTED", "LockLost"), described
    succeeded(first_run)
    assert sfn.describe_execution(executionArn=children[1])["status"] == "RUNNING"
    sfn.stop_execution(executionArn=children[1])


def map_of_keys_aborted():
    """A Map of 20 keys that is aborted at any moment leaves no lock, or its clean-up fails and says why."""
    random = Random(20)
    for attempt in range(4):
        keys = [f"map {attempt} {number}" for number in range(20)]
        execution = start("many-keys", keys=keys, seconds=60, leaseDurationMs=600_000, **SOON)
        if attempt == 0:
            wait_for("all keys", lambda keys=keys, execution=execution: all(marks(f"{execution}{key}") for key in keys))
        else:
            time.sleep(random.uniform(0, 2))
        sfn.stop_execution(executionArn=execution)
        [clean_up] = wait_for("the clean-up", lambda execution=execution: clean_ups(execution))
        ending = end_of(clean_up["executionArn"])
        # The local AWS keeps no requests in the history, so a key that is being asked for at the end is not known.
        if ending["status"] == "FAILED" and attempt > 0:
            assert ending["error"] == "LocksUnknown", ending
            continue
        assert ending["status"] == "SUCCEEDED", ending
        assert [key for key in keys if is_held(key)] == []


def is_held(key):
    try:
        return invoke("get", key)["state"] == "held"
    except Refused as refusal:
        assert str(refusal) == "LockNotFound", refusal
        return False


def late_acquire():
    """The acquire of an aborted execution arrives after the clean-up's first pass; the second one finds it."""
    acquire("late", "a function", leaseDurationMs=600_000)
    execution = mutex("late", leaseSecret="s3")
    time.sleep(1)
    sfn.stop_execution(executionArn=execution)
    [clean_up] = wait_for("the clean-up", lambda: clean_ups(execution))
    wait_for("its first pass", lambda: passes(clean_up["executionArn"]) == ["notHeld"])
    invoke("release", "late", leaseId="a function")
    acquire_as(execution, "late", "any", secret="s3")
    assert state("late") == "held"
    succeeded(clean_up["executionArn"])
    assert passes(clean_up["executionArn"]) == ["notHeld", "released"]
    assert state("late") == "released"


def late_heartbeat():
    """A late copy of an earlier request of the execution changes nothing, and costs it nothing."""
    execution = run_under_lock("late heartbeat", seconds=15, leaseDurationMs=600_000)
    acquisition = wait_for("the lock", lambda: holding("late heartbeat"))
    child_of(execution)
    named = {"arn": execution, "acquisition": acquisition}
    wait_for("a heartbeat", lambda: refusal_of("heartbeat", "late heartbeat", execution=named, sequence=1))
    try:
        invoke("acquire", "late heartbeat", ownerName="late", execution=named, leaseDurationMs=1000, sequence=1)
        raise AssertionError("a late acquire was carried out")
    except Refused as refusal:
        assert str(refusal) == "Superseded", refusal
    assert invoke("get", "late heartbeat")["leaseDurationMs"] == 600_000
    succeeded(execution)
    assert state("late heartbeat") == "released"


def holding(key):
    return state(key) == "held" and invoke("get", key)["attributes"]["executionAcquisition"]


def refusal_of(action, key, **fields):
    """Returns the refusal. None: the service answered, as for a repeat, which has an equal number without a request
    id."""
    try:
        invoke(action, key, **fields)
    except Refused as refusal:
        assert str(refusal) == "Superseded", refusal
        return str(refusal)
    return None


def succeeded_arn(clean_up):
    succeeded(clean_up["executionArn"])
    return clean_up["executionArn"]


def passes(clean_up):
    history = sfn.get_execution_history(executionArn=clean_up, maxResults=1000)["events"]
    outputs = [
        json.loads(event["taskSucceededEventDetails"]["output"])
        for event in history
        if "taskSucceededEventDetails" in event
    ]
    return [lock["outcome"] for output in outputs if "Payload" in output for lock in output["Payload"]["locks"]]


def twenty_take_turns():
    """Twenty executions of a child that knows nothing of locks, one of them aborted in mid-work, run one at a time."""
    executions = [run_under_lock("turns", seconds=2, maxWaitSeconds=600) for _ in range(20)]
    victim = wait_for("an abortion in mid-work", lambda: aborted_at_work(executions))
    spans = []
    for execution in executions:
        ending = end_of(execution, 600)
        assert ending["status"] == ("ABORTED" if execution == victim else "SUCCEEDED"), ending
        [child] = children_of(execution)
        described = end_of(child)
        span = marks(child)
        # The victim's child was stopped during its work, or just after.
        stopped = described["stopDate"].timestamp() * 1000
        spans.append((span["began"], span.get("ended", stopped), described["status"]))
    spans.sort()
    assert [status for _, _, status in spans].count("SUCCEEDED") >= 19, spans
    for (_, ended, _), (began, _, _) in itertools.pairwise(spans):
        assert began >= ended, spans
    print(f"      {len(spans)} children, {(spans[-1][1] - spans[0][0]) / 1000:.0f} s from the first to the last")


def aborted_at_work(executions):
    """Aborts and returns an execution whose child works at this moment, but not the first one: nobody waited for it."""
    for execution in executions[1:]:
        for child in children_of(execution):
            if "ended" not in marks(child) and marks(child) and stopped(execution):
                return execution
    return None


def stopped(execution):
    """False where it has ended meanwhile."""
    try:
        sfn.stop_execution(executionArn=execution)
    except sfn.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "ValidationException", error
        return False
    return True


def sleep_ends_with_the_release():
    """A sleeping execution is woken by a release, a Java client's deletion and a break; nobody polls."""
    acquire("sleep", "a function", leaseDurationMs=600_000)
    releases = [
        lambda: invoke("release", "sleep", leaseId="a function"),
        lambda: dynamodb.delete_item(TableName=TABLE, Key={"key": {"S": "sleep"}}),
        lambda: invoke("break", "sleep", recordVersionNumber=invoke("get", "sleep")["recordVersionNumber"]),
    ]
    for release in releases:
        if state("sleep") != "held":
            acquire("sleep", f"a function {uuid.uuid4()}", leaseDurationMs=600_000)
        execution = start("sleeper", key="sleep", seconds=0, maxWaitSeconds=600)
        wait_for("the sleep", lambda: sleepers("sleep"))
        release()
        succeeded(execution, 100)
        assert timeouts(execution) == 0
        assert sleepers("sleep") == []
    # The number of transitions does not depend on the wait: the choice, the sleep, and the second acquire.
    assert entered(execution, "LockMayWait", "LockSleep", "LockWait", "LockAcquire") == 4, "3 beside the first acquire"


def sleepers_wake_one_at_a_time():
    """Each release wakes the next sleeper; one who is gone is passed over."""
    acquire("sleepers", "a function", leaseDurationMs=600_000)
    gone = {"lock": {"S": '["sleepers"]'}, "waiter": {"S": "1#gone"}, "permits": {"N": "1"}, "token": {"S": "gone"}}
    dynamodb.put_item(TableName=WAITERS, Item=gone)
    executions = [start("sleeper", key="sleepers", seconds=1, maxWaitSeconds=600) for _ in range(3)]
    wait_for("the sleep", lambda: len(sleepers("sleepers")) == 4)
    invoke("release", "sleepers", leaseId="a function")
    spans = []
    for execution in executions:
        succeeded(execution, 60)
        assert timeouts(execution) == 0
        spans.append((marks(execution)["began"], marks(execution)["ended"]))
    spans.sort()
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert began >= ended, spans
    assert sleepers("sleepers") == []


def sleeper_misses_no_release():
    """A lock that was freed before the sleep began wakes the sleeper all the same."""
    execution = start("sleeps-at-once", key="missed", seconds=0, maxWaitSeconds=600)
    succeeded(execution, 100)
    assert timeouts(execution) == 0


def sleeper_takes_over_from_the_dead():
    """Nobody wakes a sleeper when the holder dies: the sleep ends when the lease is over."""
    acquire("dead", "a function", leaseDurationMs=3000)
    began = time.monotonic()
    execution = start("short-sleeper", key="dead", seconds=0, maxWaitSeconds=600)
    succeeded(execution, 100)
    assert time.monotonic() - began > 3
    assert timeouts(execution) > 0


def permits(key, machine="permits", seconds=1, **arguments):
    return start(machine, **{"key": key, "capacity": 2, "maxWaitSeconds": 600, "seconds": seconds, **arguments})


def semaphore(key):
    return functions_invoke({"action": "semaphore-get", "key": key})


def permits_are_never_exceeded():
    """Six executions share two permits, asleep while they wait; and six that poll."""
    for machine in ("permits", "polled-permits"):
        executions = [permits(f"shared {machine}", machine, 2, pollSeconds=1) for _ in range(6)]
        spans = []
        for execution in executions:
            succeeded(execution, 120)
            spans.append((marks(execution)["began"], marks(execution)["ended"]))
        for began, _ in spans:
            assert sum(start <= began < end for start, end in spans) <= 2, spans
        left = semaphore(f"shared {machine}")
        assert (left["available"], left["holders"], left["queue"]) == (2, [], []), left


def permits_of_the_aborted_return():
    """A holder and a waiter are aborted: the clean-up gives the permits back and withdraws the ticket."""
    holder = permits("aborted permits", seconds=60, permits=2)
    wait_for("the work", lambda: marks(holder))
    waiter = permits("aborted permits", seconds=0)
    wait_for("the ticket", lambda: semaphore("aborted permits")["queue"])
    wait_for("the sleep", lambda: sleepers("aborted permits"))
    sfn.stop_execution(executionArn=waiter)
    wait_for("no ticket", lambda: not semaphore("aborted permits")["queue"])
    sfn.stop_execution(executionArn=holder)
    wait_for("free permits", lambda: semaphore("aborted permits")["available"] == 2)
    succeeded(permits("aborted permits", seconds=0, permits=2), 100)


def permits_of_the_dead_return():
    """A holder and a waiter ahead die, and nobody cleans up: both are passed when their leases are over."""
    for action, more in (("acquire", {"permits": 2}), ("enqueue", {"leaseDurationMs": 4000})):
        request = {"action": f"semaphore-{action}", "key": "dead permits", "capacity": 2, "ownerName": "someone"}
        functions_invoke({"leaseDurationMs": 3000, "leaseId": action, **request, **more})
    execution = permits("dead permits", "short-permits", seconds=0)
    succeeded(execution, 60)
    assert timeouts(execution) > 1
    left = semaphore("dead permits")
    assert left["holders"] == [], left


def permits_wake_in_turn():
    """A release wakes the oldest sleeper whose permits are free, and nobody overtakes one who wants more."""
    first = permits("turns of permits", seconds=15, permits=2)
    wait_for("the work", lambda: marks(first))
    second = permits("turns of permits", seconds=1, permits=2)
    wait_for("the sleep", lambda: len(sleepers("turns of permits")) == 1)
    third = permits("turns of permits", seconds=0, permits=1)
    for execution in (first, second, third):
        succeeded(execution, 60)
        assert timeouts(execution) == 0
    assert marks(first)["ended"] <= marks(second)["began"] < marks(second)["ended"] <= marks(third)["began"]


def permits_are_granted_at_once():
    """Permits come free between the refusal and the request for a ticket: its answer is the grant."""
    execution = permits("granted at once", "enters-at-once", seconds=2, permits=2, leaseDurationMs=600_000)
    wait_for("the work", lambda: marks(execution))
    view = semaphore("granted at once")
    assert [one["leaseDurationMs"] for one in view["holders"]] == [600_000] and not view["queue"], view
    succeeded(execution, 100)
    assert semaphore("granted at once")["available"] == 2


def late_requests_for_permits():
    """Late copies of all requests of an execution, after more ends than the row remembers, make no ghost."""
    request = {"key": "late permits", "capacity": 2, "ownerName": "someone"}

    def take_turn(lease_id):
        functions_invoke({"action": "semaphore-acquire", "leaseId": lease_id, **request})
        functions_invoke({"action": "semaphore-release", "leaseId": lease_id, "key": request["key"]})

    take_turn("first")
    executions = [permits("late permits", "recorded-permits", 2, permits=2, pollSeconds=1) for _ in range(2)]
    copies = [copy for execution in executions for copy in succeeded(execution, 60)]
    for turn in range(20):
        take_turn(f"turn {turn}")
    assert {copy["action"] for copy in copies} == {"semaphore-acquire", "semaphore-enqueue"}, copies
    for copy in copies:
        try:
            functions_invoke(copy)
            raise AssertionError(f"a late copy was carried out: {copy}")
        except Refused as refusal:
            assert str(refusal) in ("LockHeld", "LockLost"), refusal
    left = semaphore("late permits")
    assert (left["holders"], left["queue"]) == ([], []), left


def sleepers(key):
    found = dynamodb.query(
        TableName=WAITERS,
        KeyConditionExpression="#lock = :lock",
        ExpressionAttributeNames={"#lock": "lock"},
        ExpressionAttributeValues={":lock": {"S": json.dumps([key])}},
        ConsistentRead=True,
    )
    return found["Items"]


def timeouts(execution):
    return failures(execution, "States.Timeout")


def failures(execution, error):
    """Counts the tries of the execution's tasks that failed with this error."""
    history = sfn.get_execution_history(executionArn=execution, maxResults=1000)["events"]
    return [event.get("taskFailedEventDetails", {}).get("error") for event in history].count(error)


def entered(execution, *states):
    """Counts the times that the execution entered one of these states: its state transitions, as they are billed."""
    history = sfn.get_execution_history(executionArn=execution, maxResults=1000)["events"]
    return sum(event.get("stateEnteredEventDetails", {}).get("name") in states for event in history)


# The longest first.
STORIES = [
    release_unreachable,
    twenty_take_turns,
    uncontended,
    contended,
    map_takes_turns,
    one_execution_locks_twice,
    express_child_refused,
    no_clean_up_without_a_lock,
    holder_killed,
    gives_up,
    lost_in_mid_work,
    work_fails,
    wrong_input,
    repeated_start,
    aborted,
    redriven_child_is_stopped,
    end_of_a_child_wakes,
    end_before_the_wait_is_not_missed,
    map_of_keys_aborted,
    late_acquire,
    late_heartbeat,
    sleep_ends_with_the_release,
    sleepers_wake_one_at_a_time,
    sleeper_misses_no_release,
    sleeper_takes_over_from_the_dead,
    permits_are_never_exceeded,
    permits_of_the_aborted_return,
    permits_of_the_dead_return,
    permits_wake_in_turn,
    permits_are_granted_at_once,
    late_requests_for_permits,
]


def tell(story):
    began = time.monotonic()
    try:
        story()
    except Exception:
        print(f"  {story.__name__}: {story.__doc__}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"  {story.__name__}: {story.__doc__}\n      seen, in {time.monotonic() - began:.1f} s", flush=True)
    return True


def main(names):
    began = time.monotonic()
    make_stack()
    print(f"  the stack is there after {time.monotonic() - began:.1f} s")
    unknown = set(names) - {story.__name__ for story in STORIES}
    assert not unknown, f"no such story: {unknown}"
    told = [story for story in STORIES if not names or story.__name__ in names]
    with ThreadPoolExecutor(STORIES_AT_A_TIME) as pool:
        seen = list(pool.map(tell, told))
    assert all(seen), [story.__name__ for story, right in zip(told, seen, strict=True) if not right]
    print(f"  all seen in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
