"""Deploys the template of the CDK construct to a local AWS, and acquires and releases a lock through it.

Called by cdk.sh, with the local AWS at AWS_ENDPOINT_URL. Argument: the folder that the CDK filled.
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


def post(url, path, body):
    # The path serves systems whose resolver does not know the names below localhost.
    api = urllib.parse.urlparse(url).hostname.split(".")[0]
    local = client("s3").meta.endpoint_url
    address = f"{local}/_aws/execute-api/{api}/$default{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def main(folder):
    upload_assets(folder)
    outputs = deploy(folder)
    granted = post(outputs["ApiUrl"], "/v1/acquire", {"key": "Moe", "ownerName": "cdk", "leaseId": "one"})
    assert granted["outcome"] == "created", granted
    answer = functions.invoke(
        FunctionName=outputs["InvokeFunction"], Payload=json.dumps({"action": "get", "key": "Moe"})
    )
    seen = json.loads(answer["Payload"].read())
    assert seen["state"] == "held" and seen["fencingToken"] == granted["fencingToken"], seen
    released = post(outputs["ApiUrl"], "/v1/release", {"key": "Moe", "leaseId": "one"})
    assert released["outcome"] == "released", released
    machine = sfn.describe_state_machine(stateMachineArn=outputs["RunUnderLockArn"])
    assert "${" not in machine["definition"], machine["definition"]
    print("  a lock was taken over HTTP, seen by a direct invocation, and released")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
