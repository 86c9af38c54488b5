"""A lock around a handler: keys, contention, the deadline, and every way out."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MakeClient, broken, eventually
from proxy import Answer, DropAnswer, Proxy, Seen, only

from leasehold import Client, Held, InvalidRequest, LockHeld, LockLost, Unavailable
from leasehold._invocation import FROZEN
from leasehold.handlers import InvocationGuard, locked


class Context:
    """The context of an invocation that ends after so many seconds."""

    leasehold: InvocationGuard

    def __init__(self, seconds: float = 30.0) -> None:
        self._ends = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return max(0, round((self._ends - time.monotonic()) * 1000))


def is_free(client: Client, key: str) -> bool:
    return client.get(key).state == "released"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("orders/{detail.id}", "orders/7"),
        ("{Records[1].body}-{detail-type}", "b-paid"),
        ("fixed", "fixed"),
        (lambda event, context: f"f-{event['detail']['id']}-{context.name}", "f-7-n"),
    ],
)
def test_key_is_read_from_the_event(client: Client, key: str, template: Any, expected: str) -> None:
    event = {"detail": {"id": 7}, "detail-type": "paid", "Records": [{"body": "a"}, {"body": "b"}]}
    prefixed = (lambda e, c: key + template(e, c)) if callable(template) else key + template

    @locked(key=prefixed, client=client)
    def handler(event: Any, context: Any) -> str:
        return str(context.leasehold.key)

    context = Context()
    context.name = "n"  # type: ignore[attr-defined]
    assert handler(event, context) == key + expected


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{detail.id}", "detail.id"),
        ("{Records[3].body}", r"Records\[3\].body"),
        ("{a.b}", "a.b"),
        ("{flag}", "flag"),
        ("{a}", "a of the event"),
    ],
)
def test_missing_path_is_named_before_anything_is_asked(proxy: Proxy, template: str, named: str) -> None:
    with Client(proxy.url) as client:

        @locked(key=template, client=client)
        def handler(event: Any, context: Any) -> None:
            pytest.fail("it ran")

        with pytest.raises(InvalidRequest, match=named):
            handler({"Records": [], "a": [], "flag": True}, Context())
    assert proxy.seen == []


@pytest.mark.parametrize("template", ["{}", "a{b", "a}b", "{a..b}", "{a[x]}", "{[0]}", ""])
def test_template_is_refused_at_the_decoration(client: Client, template: str) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        locked(key=template, client=client)


def test_guard_is_in_the_context_and_a_keyword(client: Client, key: str) -> None:
    @locked(key=key, client=client)
    def handler(event: Any, context: Any, guard: InvocationGuard) -> int:
        assert guard is context.leasehold
        assert guard.valid
        assert guard.remaining() > 0
        return int(guard.fencing_token)

    first, second = handler({}, Context()), handler({}, Context())
    assert second > first
    assert is_free(client, key)


def test_exception_of_the_handler_releases(client: Client, key: str) -> None:
    @locked(key=key, client=client)
    def handler(event: Any, context: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        handler({}, Context())
    assert is_free(client, key)


def test_lease_is_cut_to_the_invocation(client: Client, key: str) -> None:
    @locked(key=key, client=client, lease="1h", margin=1.0)
    def handler(event: Any, context: Any) -> float:
        return client.get(key).lease

    assert 5.0 < handler({}, Context(6.0)) <= 7.0


def test_heartbeats_never_outlast_the_margin(client: Client, key: str) -> None:
    leases: dict[str, float] = {}

    @locked(key=key, client=client, lease=6.0, margin=0.5)
    def handler(event: Any, context: Any) -> None:
        before = context.get_remaining_time_in_millis() / 1000
        while context.leasehold.lost is None:
            seen = client.get(key)
            if seen.record_version_number not in leases:
                # It was carried out after the look before, so less than `before` was left. It may have waited on its
                # way.
                leases[seen.record_version_number] = seen.lease
                assert seen.lease <= min(6.0, before + 0.5) + 1.25
            before = context.get_remaining_time_in_millis() / 1000
            time.sleep(0.02)

    handler({}, Context(10.0))
    assert min(leases.values()) < 6.0 == max(leases.values())


def test_work_that_goes_on_is_told_and_the_lock_released(client: Client, key: str) -> None:
    told = threading.Event()

    @locked(key=key, client=client, margin=8.0)
    def handler(event: Any, context: Any) -> None:
        guard = context.leasehold
        guard.on_lost(lambda _: told.set())
        assert told.wait(30)
        assert guard.lost == "deadline"
        assert not guard.valid
        assert guard.remaining() == 0.0
        with pytest.raises(LockLost, match="deadline"):
            guard.ensure_held()
        eventually(lambda: is_free(client, key))
        assert context.get_remaining_time_in_millis() > 0, "half a margin is left for the release"

    with pytest.raises(LockLost, match="deadline"):
        handler({}, Context(9.0))


def test_handler_ends_after_the_release_that_the_deadline_began(
    make_client: MakeClient, proxy: Proxy, key: str
) -> None:
    begun = threading.Event()

    def slow(request: Seen) -> None:
        if request.action == "release":
            begun.set()
            time.sleep(0.5)

    proxy.fault = slow

    @locked(key=key, client=make_client(proxy.url), margin=12.0)
    def handler(event: Any, context: Any) -> None:
        assert begun.wait(30)
        raise ValueError("as it was told")

    with pytest.raises(ValueError, match="as it was told"):
        handler({}, Context(13.0))
    assert is_free(make_client(), key)


def test_work_that_stops_when_told_returns_its_result(client: Client, key: str) -> None:
    @locked(key=key, client=client, margin=10.0)
    def handler(event: Any, context: Any) -> str:
        stop = threading.Event()
        context.leasehold.on_lost(lambda _: stop.set())
        assert stop.wait(30)
        return "checkpoint"

    assert handler({}, Context(11.0)) == "checkpoint"
    assert is_free(client, key)


def test_async_work_is_cancelled_at_the_deadline(client: Client, key: str) -> None:
    cancelled = []

    @locked(key=key, client=client, margin=3.0)
    async def handler(event: Any, context: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(context.get_remaining_time_in_millis())
            raise

    with pytest.raises(LockLost, match="deadline"):
        handler({}, Context(5.0))
    assert cancelled
    assert is_free(client, key)


def test_async_handlers_share_one_loop(client: Client, key: str) -> None:
    @locked(key=key, client=client)
    async def handler(event: Any, context: Any) -> asyncio.AbstractEventLoop:
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    loop = handler({}, Context())
    assert handler({}, Context()) is loop


def test_loss_cancels_async_work(client: Client, key: str) -> None:
    @locked(key=key, client=client, lease=8)
    async def handler(event: Any, context: Any) -> None:
        broken(client, key)
        await asyncio.sleep(60)

    with pytest.raises(LockLost, match=r"released|absent|version"):
        handler({}, Context())


def test_nothing_is_asked_without_time_for_work(client: Client, key: str) -> None:
    @locked(key=key, client=client, margin=1.0)
    def handler(event: Any, context: Any) -> None:
        pytest.fail("it ran")

    with pytest.raises(InvalidRequest, match="no time"):
        handler({}, Context(0.9))


@pytest.mark.parametrize("on_contention", ["raise", "skip", "wait"])
def test_contention_is_answered_as_chosen(
    client: Client, make_client: MakeClient, key: str, on_contention: Any
) -> None:
    @locked(key=key, client=client, on_contention=on_contention, skipped="busy", work_needs=27.5)
    def handler(event: Any, context: Any) -> str:
        return "ran"

    with make_client().lock(key):
        context = Context(30.0)
        if on_contention == "skip":
            assert handler({}, context) == "busy"
        else:
            with pytest.raises(LockHeld):
                handler({}, context)
        # A wait takes its time, and leaves what the work needs.
        assert (context.get_remaining_time_in_millis() <= 28_600) == (on_contention == "wait")
        assert context.get_remaining_time_in_millis() > 10_000
    assert handler({}, Context()) == "ran"


def test_wait_ends_with_the_holder(client: Client, make_client: MakeClient, key: str) -> None:
    holder = make_client().try_acquire(key)
    assert not isinstance(holder, Held)
    threading.Timer(0.3, holder.release).start()

    @locked(key=key, client=client, on_contention="wait")
    def handler(event: Any, context: Any) -> str:
        return "ran"

    assert handler({}, Context()) == "ran"


def test_lease_is_cut_after_a_long_wait(client: Client, make_client: MakeClient, key: str) -> None:
    """The lease was asked for before the wait, when more of the invocation remained."""
    holder = make_client().try_acquire(key)
    assert not isinstance(holder, Held)
    threading.Timer(4.0, holder.release).start()

    @locked(key=key, client=client, on_contention="wait", lease="1h", margin=0.5)
    def handler(event: Any, context: Any) -> None:
        # The lease of the wait's beginning, of 20.5 s, would be renewed after 5 s.
        eventually(lambda: client.get(key).lease < 17.0, within=3.0)

    handler({}, Context(20.0))


def test_nothing_is_believed_after_a_freeze_until_a_heartbeat(make_client: MakeClient, proxy: Proxy, key: str) -> None:
    client = make_client(proxy.url)

    @locked(key=key, client=client, lease="1h")
    def handler(event: Any, context: Any) -> None:
        guard = context.leasehold
        proxy.fault = only("heartbeat", Answer(503))
        guard._pulse -= FROZEN + 1  # as after a thaw: the process gave no sign of life for so long
        assert not guard.valid
        assert guard.remaining() == 0.0
        proxy.let_pass()
        before = proxy.count("heartbeat")
        guard.ensure_held()
        assert proxy.count("heartbeat") > before
        assert guard.valid
        guard._pulse -= FROZEN + 1
        assert not guard.valid
        eventually(lambda: guard.valid)  # a heartbeat is sent after a thaw, though nobody asks
        broken(make_client(), key)
        guard._pulse -= FROZEN + 1
        with pytest.raises(LockLost):
            guard.ensure_held()

    with pytest.raises(LockLost):
        handler({}, Context(900.0))


def test_heartbeat_from_before_a_freeze_proves_nothing(
    make_client: MakeClient, proxy: Proxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold._invocation.PULSE", 60.0)  # the test alone sends heartbeats

    @locked(key=key, client=make_client(proxy.url))
    def handler(event: Any, context: Any) -> None:
        guard = context.leasehold
        under_way, go_on = threading.Event(), threading.Event()

        def late(request: Seen) -> None:
            if request.action == "heartbeat":
                under_way.set()
                assert go_on.wait(30)

        proxy.fault = late
        beat = threading.Thread(target=guard.renew)
        beat.start()
        assert under_way.wait(30)
        guard._pulse -= FROZEN + 1  # the process is frozen between the request and its answer
        assert not guard.valid
        proxy.let_pass()
        go_on.set()
        beat.join(30)
        assert not guard.valid
        guard.ensure_held()
        assert guard.valid
        assert proxy.count("heartbeat") > 1

    handler({}, Context())


@pytest.mark.parametrize("on_contention", ["raise", "wait"])
def test_request_without_an_answer_leaves_nothing_behind(
    make_client: MakeClient, proxy: Proxy, key: str, on_contention: Any
) -> None:
    def slow(request: Seen) -> DropAnswer | None:
        if request.action == "release":
            time.sleep(0.5)
        return DropAnswer() if request.action == "acquire" else None

    proxy.fault = slow
    decorate = locked(key=key, client=make_client(proxy.url), on_contention=on_contention, work_needs=26.0)
    with pytest.raises(Unavailable):
        decorate(lambda event, context: pytest.fail("it ran"))({}, Context())
    # The sandbox is frozen behind the error.
    assert is_free(make_client(), key)


class Queue:
    """SQS, which hides messages."""

    meta = SimpleNamespace(endpoint_url="https://sqs.eu-central-1.amazonaws.com")

    def __init__(self) -> None:
        self.hidden: list[dict[str, Any]] = []

    def change_message_visibility(self, **arguments: Any) -> None:
        self.hidden.append(arguments)


def record(number: int, key: str, group: str | None = None) -> dict[str, Any]:
    return {
        "messageId": f"m{number}",
        "receiptHandle": f"r{number}",
        "body": key,
        "attributes": {} if group is None else {"MessageGroupId": group},
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders",
    }


def test_held_record_comes_again_and_others_go_on(client: Client, make_client: MakeClient, key: str) -> None:
    queue, ran = Queue(), []

    @locked(key="{body}", client=client, on_contention="sqs-retry", sqs=queue)
    def handler(record: Any, context: Any) -> None:
        ran.append(record["messageId"])
        if record["messageId"] == "m3":
            raise ValueError("this one fails")

    with make_client().lock(key, lease=10.0):
        records = [record(1, f"{key}-a"), record(2, key), record(3, f"{key}-c"), record(4, f"{key}-d")]
        response = handler({"Records": records}, Context())
    assert response == {"batchItemFailures": [{"itemIdentifier": "m2"}, {"itemIdentifier": "m3"}]}
    assert ran == ["m1", "m3", "m4"]
    (hidden,) = queue.hidden
    assert hidden["QueueUrl"] == "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
    assert hidden["ReceiptHandle"] == "r2"
    assert 1 <= hidden["VisibilityTimeout"] <= 11


def test_record_is_hidden_for_twelve_hours_at_most(client: Client, make_client: MakeClient, key: str) -> None:
    queue = Queue()
    handler = locked(key="{body}", client=client, on_contention="sqs-retry", sqs=queue)(lambda event, context: None)
    holder = make_client().try_acquire(key, lease="24h", manual_heartbeats=True)
    assert handler({"Records": [record(1, key)]}, Context()) == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
    assert [hidden["VisibilityTimeout"] for hidden in queue.hidden] == [12 * 3600]
    holder.granted().release()


def test_group_of_a_fifo_queue_keeps_its_order(client: Client, make_client: MakeClient, key: str) -> None:
    ran = []

    @locked(key="{body}", client=client, on_contention="sqs-retry", sqs=Queue())
    def handler(record: Any, context: Any) -> None:
        ran.append(record["messageId"])

    with make_client().lock(key):
        records = [record(1, key, "g"), record(2, f"{key}-b", "g"), record(3, f"{key}-c", "h")]
        response = handler({"Records": records}, Context())
    assert [failure["itemIdentifier"] for failure in response["batchItemFailures"]] == ["m1", "m2"]
    assert ran == ["m3"]


def test_records_without_time_come_again(client: Client, key: str) -> None:
    @locked(key="{body}", client=client, on_contention="sqs-retry", sqs=Queue(), work_needs="5m")
    def handler(record: Any, context: Any) -> None:
        pytest.fail("it ran")

    response = handler({"Records": [record(1, key)]}, Context())
    assert response == {"batchItemFailures": [{"itemIdentifier": "m1"}]}


@pytest.mark.parametrize("duration", ["x", "5", "-1s", "1 h", -1, float("nan")])
def test_duration_that_is_none_is_refused(client: Client, duration: Any) -> None:
    with pytest.raises(InvalidRequest, match="lease"):
        locked(key="k", client=client, lease=duration)
