"""A report for each hour. EventBridge Scheduler sends its events at least once."""

import os

from leasehold import Client
from leasehold.handlers import idempotent

client = Client(os.environ["LEASEHOLD_URL"])


@idempotent(key="reports/{time}", client=client, completed_ttl="7d", payload=lambda event: event["time"])
def handler(event, context):
    print("reports", event["time"])
    return event["time"]
