"""The stack of app.js, with the construct for Python: `python app.py CODE_DIRECTORY OUT BUCKET`.

scripts/cdk.sh compares the two templates.
"""

import platform
import sys

from aws_cdk import App, CfnOutput, DefaultStackSynthesizer, Stack
from leasehold_cdk import Leasehold, LeaseholdArchitecture, LeaseholdAuthorizer, LeaseholdFunctions

code_directory, outdir, bucket = sys.argv[1:]
app = App(outdir=outdir, analytics_reporting=False)
synthesizer = DefaultStackSynthesizer(file_assets_bucket_name=bucket, generate_bootstrap_version_rule=False)
stack = Stack(app, "Test", synthesizer=synthesizer)
lock = Leasehold(
    stack,
    "Leasehold",
    code_directory=code_directory,
    architecture=LeaseholdArchitecture.X86_64 if platform.machine() == "x86_64" else LeaseholdArchitecture.ARM64,
    authorizer=LeaseholdAuthorizer.NONE,
    functions=LeaseholdFunctions.ONE,
    function_url=True,
    watch_concurrency=10,
    wake_waiters=True,
)
CfnOutput(stack, "ApiUrl", value=lock.url)
CfnOutput(stack, "InvokeFunction", value=lock.invoke_function.function_name)
CfnOutput(stack, "RunUnderLockArn", value=lock.run_under_lock.state_machine_arn)
CfnOutput(stack, "FunctionUrl", value=lock.function_url)
CfnOutput(stack, "WaitersTableName", value=lock.waiters_table.table_name)
app.synth()
