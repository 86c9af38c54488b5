// The stack that scripts/cdk.sh deploys: `node app.js CODE_DIRECTORY OUT BUCKET`.
const { App, CfnOutput, DefaultStackSynthesizer, Stack } = require("aws-cdk-lib");
const { Leasehold, LeaseholdArchitecture, LeaseholdAuthorizer, LeaseholdFunctions } = require("../lib");

const [codeDirectory, outdir, bucket] = process.argv.slice(2);
const app = new App({ outdir, analyticsReporting: false });
const synthesizer = new DefaultStackSynthesizer({ fileAssetsBucketName: bucket, generateBootstrapVersionRule: false });
const stack = new Stack(app, "Test", { synthesizer });
const lock = new Leasehold(stack, "Leasehold", {
  codeDirectory,
  architecture: process.arch === "x64" ? LeaseholdArchitecture.X86_64 : LeaseholdArchitecture.ARM64,
  authorizer: LeaseholdAuthorizer.NONE,
  functions: LeaseholdFunctions.ONE,
  functionUrl: true,
  watchConcurrency: 10,
  wakeWaiters: true,
});
new CfnOutput(stack, "ApiUrl", { value: lock.url });
new CfnOutput(stack, "InvokeFunction", { value: lock.invokeFunction.functionName });
new CfnOutput(stack, "RunUnderLockArn", { value: lock.runUnderLock.stateMachineArn });
new CfnOutput(stack, "FunctionUrl", { value: lock.functionUrl });
new CfnOutput(stack, "WaitersTableName", { value: lock.waitersTable.tableName });
app.synth();
