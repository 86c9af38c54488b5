"""Orders from a queue, one at a time for each customer. A held record comes again when its lock may be free."""

import os

from leasehold import Client
from leasehold.handlers import locked

client = Client(os.environ["LEASEHOLD_URL"])


@locked(key="customers/{messageAttributes.customer.stringValue}", client=client, on_contention="sqs-retry")
def handler(record, context):
    print("ships", record["body"], "under", context.leasehold.fencing_token)
