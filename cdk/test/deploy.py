"""Deploys the template of the CDK construct to a local AWS, and acquires and releases a lock through it.

Called by scripts/cdk.sh, with the local AWS at AWS_ENDPOINT_URL. Argument: the folder that the CDK filled.
"""

import io
import json
import pathlib
import sys
import time
import urllib.parse
import urllib.request
import zipfile

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

STACK = "cdk"
BUCKET = "artifacts"


def client(name):
    return botocore.session.get_session().create_client(name, region_name="us-east-1")


cloudformation, s3, functions, sfn = (client(name) for name in ("cloudformation", "s3", "lambda", "stepfunctions"))


def upload_assets(folder):
    s3.create_bucket(Bucket=BUCKET)
    manifest = json.loads((folder / "Test.assets.json").read_text())
    for asset in manifest["files"].values():
        source = folder / asset["source"]["path"]
        body = zipped(source) if asset["source"]["packaging"] == "zip" else source.read_bytes()
        [destination] = asset["destinations"].values()
        s3.put_object(Bucket=BUCKET, Key=destination["objectKey"], Body=body)


def zipped(folder):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path in folder.iterdir():
            entry = zipfile.ZipInfo(path.name)
            entry.external_attr = 0o755 << 16
            file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 1)
    return archive.getvalue()


def deploy(folder):
    template = (folder / "Test.template.json").read_text()
    s3.put_object(Bucket=BUCKET, Key="template.json", Body=template.encode())
    cloudformation.create_stack(
        StackName=STACK,
        TemplateURL=f"https://s3.us-east-1.amazonaws.com/{BUCKET}/template.json",
        Capabilities=["CAPABILITY_IAM"],
    )
    deadline = time.monotonic() + 300
    while True:
        [stack] = cloudformation.describe_stacks(StackName=STACK)["Stacks"]
        if stack["StackStatus"] == "CREATE_COMPLETE":
            return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        assert stack["StackStatus"] == "CREATE_IN_PROGRESS", events()
        assert time.monotonic() < deadline, stack
        time.sleep(0.5)


def events():
    found = cloudformation.describe_stack_events(StackName=STACK)["StackEvents"]
    return [event for event in found if "FAILED" in event["ResourceStatus"]]


def post(place, path, body):
    """Sends a signed request to the local AWS. The path serves resolvers that know no names below localhost."""
    address = f"{client('s3').meta.endpoint_url}/_aws/{place}{path}"
    unsigned = AWSRequest("POST", address, {"Content-Type": "application/json"}, json.dumps(body))
    # The Function URL asks for it, the API of this stack does not.
    SigV4Auth(botocore.session.get_session().get_credentials(), "lambda", "us-east-1").add_auth(unsigned)
    request = urllib.request.Request(address, unsigned.data.encode(), dict(unsigned.headers))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def first_label(url):
    return urllib.parse.urlparse(url).hostname.split(".")[0]


def main(folder):
    upload_assets(folder)
    outputs = deploy(folder)
    api = f"execute-api/{first_label(outputs['ApiUrl'])}/$default"
    granted = post(api, "/v1/acquire", {"key": "Moe", "ownerName": "cdk", "leaseId": "one"})
    assert granted["outcome"] == "created", granted
    answer = functions.invoke(
        FunctionName=outputs["InvokeFunction"], Payload=json.dumps({"action": "get", "key": "Moe"})
    )
    seen = json.loads(answer["Payload"].read())
    assert seen["state"] == "held" and seen["fencingToken"] == granted["fencingToken"], seen
    url = f"lambda-url/{first_label(outputs['FunctionUrl'])}"
    renewed = post(url, "/v1/heartbeat", {"key": "Moe", "leaseId": "one"})
    assert renewed["fencingToken"] == granted["fencingToken"], renewed
    released = post(api, "/v1/release", {"key": "Moe", "leaseId": "one"})
    assert released["outcome"] == "released", released
    machine = sfn.describe_state_machine(stateMachineArn=outputs["RunUnderLockArn"])
    assert "${" not in machine["definition"], machine["definition"]
    sleeper_wakes(outputs)
    print("  a lock was taken over HTTP, seen by a direct invocation, renewed by the Function URL, and released")
    print("  an execution that slept was woken")


def sleeper_wakes(outputs):
    """An execution sleeps for a lock that is free: the pipe and the waker end its sleep."""
    item = {"lock": {"S": '["nobody"]'}, "waiter": {"S": "1"}, "permits": {"N": "1"}}
    sleep = {
        "Type": "Task",
        "End": True,
        "TimeoutSeconds": 60,
        "Resource": "arn:aws:states:::aws-sdk:dynamodb:putItem.waitForTaskToken",
        "Arguments": {
            "TableName": outputs["WaitersTableName"],
            "Item": {**item, "token": {"S": "{% $states.context.Task.Token %}"}},
        },
    }
    definition = {"QueryLanguage": "JSONata", "StartAt": "Sleep", "States": {"Sleep": sleep}}
    role = "arn:aws:iam::000000000000:role/unchecked"
    machine = sfn.create_state_machine(name="sleeper", definition=json.dumps(definition), roleArn=role)
    execution = sfn.start_execution(stateMachineArn=machine["stateMachineArn"])["executionArn"]
    while (described := sfn.describe_execution(executionArn=execution))["status"] == "RUNNING":
        time.sleep(0.2)
    assert described["status"] == "SUCCEEDED", described


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
