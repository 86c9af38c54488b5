"""A function of Powertools' own suite, with Leasehold's layer in place of that for DynamoDB."""

import importlib
import os

from aws_lambda_powertools.utilities import idempotency

from leasehold import Client
from leasehold.powertools import LeaseholdPersistenceLayer


def layer(table_name):
    client = Client(os.environ["POWERTOOLS_SERVICE"])
    return LeaseholdPersistenceLayer(client, prefix=f"{os.environ['POWERTOOLS_HANDLER']}/")


vars(idempotency)["DynamoDBPersistenceLayer"] = layer
lambda_handler = importlib.import_module(os.environ["POWERTOOLS_HANDLER"]).lambda_handler
