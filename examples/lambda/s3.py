"""A thumbnail for each object, whose notifications come at least once: one writer at a time for each object."""

import os

from leasehold import Client
from leasehold.handlers import locked

client = Client(os.environ["LEASEHOLD_URL"])


@locked(key="objects/{Records[0].s3.bucket.name}/{Records[0].s3.object.key}", client=client, on_contention="wait")
def handler(event, context, guard):
    guard.ensure_held()
    return {"thumbnail": event["Records"][0]["s3"]["object"]["key"], "token": guard.fencing_token}
