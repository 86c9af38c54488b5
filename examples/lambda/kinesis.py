"""The sum of a batch, which Kinesis sends again after a time-out, even where the function had done its work."""

import os

from leasehold import Client
from leasehold.handlers import idempotent

client = Client(os.environ["LEASEHOLD_URL"])


@idempotent(key="batches/{Records[0].eventID}", client=client, completed_ttl="24h", on_contention="wait")
def handler(event, context):
    return {"sums": len(event["Records"])}
