"""Puts Leasehold's layer under the idempotency suites of Powertools for Python: see scripts/powertools.sh.

The suites of the Redis layer make one layer from a client of Redis; those of `e2e` invoke deployed functions. Here the
first get a layer of ours, and the second are functions in sandboxes (scripts/nemesis/lambda_runtime.py).
"""

import io
import json
import multiprocessing
import os
import pathlib
import sys
import types
import uuid

import pytest

# Powertools' module imports it; the layer that needs it is replaced below.
sys.modules.setdefault("redis", types.ModuleType("redis"))

from aws_lambda_powertools.utilities.idempotency.persistence import redis  # noqa: E402
from lambda_runtime import Sandbox  # noqa: E402

from leasehold import Client  # noqa: E402
from leasehold.powertools import LeaseholdPersistenceLayer  # noqa: E402

HERE = pathlib.Path(__file__).parent
TIMEOUT = 10.0
"""Seconds, as in the stack of the suite."""


def layer(*arguments, **options):
    """A layer whose records no other test sees. The suites' context ends in a second."""
    client = Client(os.environ["POWERTOOLS_SERVICE"])
    return LeaseholdPersistenceLayer(client, prefix=f"{uuid.uuid4()}/", margin=0.3)


vars(redis)["RedisCachePersistenceLayer"] = layer
# The suite's package forks, as the standard one does on Linux.
sys.modules["multiprocess"] = multiprocessing


class Functions:
    """The functions of the suite, each invocation in a sandbox of its own, or in one that is free."""

    def __init__(self, output):
        self._output = output
        self._free = {}

    def invoke(self, name, payload, raise_on_error=True):
        free = self._free.setdefault(name, [])
        sandbox = free.pop() if free else self._start(name)
        invocation = sandbox.invoke(json.loads(payload), TIMEOUT)
        if invocation.how in ("returned", "raised"):
            free.append(sandbox)
            text = json.dumps(invocation.answer)
        else:
            sandbox.close()
            text = json.dumps({"errorMessage": f"{invocation.id} Task timed out after {TIMEOUT:.2f} seconds"})
        if raise_on_error and invocation.how != "returned":
            raise RuntimeError(f"Function failed invocation: {text}")
        return {"Payload": io.BytesIO(text.encode())}, None

    def _start(self, name):
        environment = {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "tests/e2e/idempotency/handlers")]),
            "POWERTOOLS_HANDLER": name,
            "AWS_LAMBDA_FUNCTION_NAME": name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
            "AWS_LAMBDA_LOG_GROUP_NAME": "g",
            "AWS_LAMBDA_LOG_STREAM_NAME": "s",
        }
        command = [sys.executable, "-m", "awslambdaric", "function_of_suite.lambda_handler"]
        return Sandbox(command, environment, self._output)

    def close(self):
        for sandboxes in self._free.values():
            for sandbox in sandboxes:
                sandbox.close()


NOT_OF_A_LAYER = {
    "connection_standalone": "the options of a client of Redis",
    "connection_cluster": "the options of a client of Redis",
    "connection_conn_error": "the options of a client of Redis",
    "connection_conf_error": "the options of a client of Redis",
    "key_corrupted": "writes into Redis",
    "orphan_record": "the second lock that the layer for Redis needs beside its record",
    "orphan_record_lock": "the second lock that the layer for Redis needs beside its record",
    "orphan_record_race_condition": "writes into Redis",
    "error_in_progress": "a client of Redis that is closed",
    "item_to_datarecord_conversion": "the form of the layer's own records",
}


def pytest_collection_modifyitems(items):
    for item in items:
        reason = NOT_OF_A_LAYER.get(item.name.removeprefix("test_redis_").removeprefix("test_"))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason))


functions = None


def get_lambda_response(lambda_arn, payload=None, client=None, raise_on_error=True):
    return functions.invoke(lambda_arn, payload, raise_on_error)


class Options:
    def __init__(self, lambda_arn, payload=None, raise_on_error=True):
        self.arguments = (lambda_arn, payload, None, raise_on_error)


def in_parallel(options):
    import time
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as executor:
        running = []
        for one in options:
            time.sleep(3.0 * len(running))  # the first is in its handler, on a busy machine, too
            running.append(executor.submit(get_lambda_response, *one.arguments))
    return [one.result() for one in running]


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


common = module(
    "tests.e2e.utils.data_fetcher.common", GetLambdaResponseOptions=Options, get_lambda_response_in_parallel=in_parallel
)
fetcher = module("tests.e2e.utils.data_fetcher", get_lambda_response=get_lambda_response, common=common)
utils = module("tests.e2e.utils", data_fetcher=fetcher)
sys.modules |= {"tests.e2e.utils": utils, fetcher.__name__: fetcher, common.__name__: common}


@pytest.fixture(scope="session")
def infrastructure():
    global functions
    with open(HERE / "functions.log", "ab") as output:
        functions = Functions(output)
        handlers = {
            "TtlCacheExpirationHandlerArn": "ttl_cache_expiration_handler",
            "TtlCacheTimeoutHandlerArn": "ttl_cache_timeout_handler",
            "ParallelExecutionHandlerArn": "parallel_execution_handler",
            "FunctionThreadSafetyHandlerArn": "function_thread_safety_handler",
            "OptionalIdempotencyKeyHandlerArn": "optional_idempotency_key_handler",
            "PayloadTamperingValidationHandlerArn": "payload_tampering_validation_handler",
            "ResponseHookArn": "response_hook",
        }
        yield handlers
        functions.close()
