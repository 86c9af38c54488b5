// The stack that scripts/cdk.sh compares with the SAM template and deploys: `node app.js CODE_DIRECTORY OUT BUCKET [whole]`.
const { App, CfnOutput, DefaultStackSynthesizer, Stack } = require("aws-cdk-lib");
const lambda = require("aws-cdk-lib/aws-lambda");
const { Leasehold, LeaseholdAuthorizer, LeaseholdFunctions } = require("../lib");

const [codeDirectory, outdir, bucket, extent] = process.argv.slice(2);
// Everything that the construct can have.
const WHOLE = { functions: LeaseholdFunctions.ONE, functionUrl: true, watchConcurrency: 10, wakeWaiters: true };
const app = new App({ outdir });
const synthesizer = new DefaultStackSynthesizer({ fileAssetsBucketName: bucket, generateBootstrapVersionRule: false });
const stack = new Stack(app, "Test", { synthesizer });
const lock = new Leasehold(stack, "Leasehold", {
  codeDirectory,
  architecture: process.arch === "x64" ? lambda.Architecture.X86_64 : lambda.Architecture.ARM_64,
  authorizer: LeaseholdAuthorizer.NONE,
  ...(extent === "whole" ? WHOLE : {}),
});
new CfnOutput(stack, "ApiUrl", { value: lock.url });
new CfnOutput(stack, "InvokeFunction", { value: lock.invokeFunction.functionName });
new CfnOutput(stack, "RunUnderLockArn", { value: lock.runUnderLock.stateMachineArn });
if (lock.functionUrl) new CfnOutput(stack, "FunctionUrl", { value: lock.functionUrl });
if (lock.waitersTable) new CfnOutput(stack, "WaitersTableName", { value: lock.waitersTable.tableName });
app.synth();
