// The stack that scripts/cdk.sh compares with the SAM template and deploys: `node app.js CODE_DIRECTORY OUT`.
const { App, CfnOutput, DefaultStackSynthesizer, Stack } = require('aws-cdk-lib');
const lambda = require('aws-cdk-lib/aws-lambda');
const { Leasehold, LeaseholdAuthorizer } = require('../lib');

const [codeDirectory, outdir, bucket] = process.argv.slice(2);
const app = new App({ outdir });
const synthesizer = new DefaultStackSynthesizer({ fileAssetsBucketName: bucket, generateBootstrapVersionRule: false });
const stack = new Stack(app, 'Test', { synthesizer });
const lock = new Leasehold(stack, 'Leasehold', {
  codeDirectory,
  architecture: process.arch === 'x64' ? lambda.Architecture.X86_64 : lambda.Architecture.ARM_64,
  authorizer: LeaseholdAuthorizer.NONE,
});
new CfnOutput(stack, 'ApiUrl', { value: lock.url });
new CfnOutput(stack, 'InvokeFunction', { value: lock.invokeFunction.functionName });
new CfnOutput(stack, 'RunUnderLockArn', { value: lock.runUnderLock.stateMachineArn });
app.synth();
