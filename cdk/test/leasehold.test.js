// Synthesises the construct and looks at what comes of it. scripts/cdk.sh compares it with the SAM template and deploys it
// to a local AWS.
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { test } = require("node:test");
const { App, Stack } = require("aws-cdk-lib");
const { Template, Match } = require("aws-cdk-lib/assertions");
const dynamodb = require("aws-cdk-lib/aws-dynamodb");
const iam = require("aws-cdk-lib/aws-iam");
const { Leasehold, LeaseholdAuthorizer, LeaseholdFunctions } = require("../lib");

const codeDirectory = fs.mkdtempSync(path.join(os.tmpdir(), "leasehold-cdk-"));
fs.mkdirSync(path.join(codeDirectory, "leasehold-locks"));
fs.writeFileSync(path.join(codeDirectory, "leasehold-locks", "bootstrap"), "");

function synthesise(props, use = () => {}) {
  const stack = new Stack(new App(), "Test", { env: { account: "123456789012", region: "eu-west-1" } });
  use(new Leasehold(stack, "Leasehold", { codeDirectory, ...props }), stack);
  return Template.fromStack(stack);
}

function worker(stack) {
  return new iam.Role(stack, "Worker", {
    roleName: "worker",
    assumedBy: new iam.ServicePrincipal("lambda.amazonaws.com"),
  });
}

function environment(template) {
  const [fn] = Object.values(template.findResources("AWS::Lambda::Function", { Properties: { Timeout: 29 } }));
  return fn.Properties.Environment.Variables;
}

function keyScopes(template) {
  return JSON.stringify(environment(template).LEASEHOLD_KEY_SCOPES);
}

test("grantUse allows the routes of a holder and no others", () => {
  const template = synthesise({}, (lock, stack) => lock.grantUse(worker(stack)));
  const [policy] = Object.entries(template.findResources("AWS::IAM::Policy")).filter(([id]) => id.startsWith("Worker"));
  const text = JSON.stringify(policy[1].Properties.PolicyDocument);
  for (const route of ["POST/v1/acquire", "POST/v1/heartbeat", "POST/v1/release"]) {
    assert.ok(text.includes(`/$default/${route}`), route);
  }
  assert.ok(!text.includes("break") && !text.includes("*"), text);
  assert.strictEqual(keyScopes(template), '""');
});

test("grantUse with keys scopes the grantee and direct calls", () => {
  const template = synthesise({ directKeys: ["jobs/*"] }, (lock, stack) =>
    lock.grantUse(worker(stack), { keys: ["billing/*"] }),
  );
  const scopes = keyScopes(template);
  assert.ok(scopes.includes("billing/") && !scopes.includes("billing/*"), scopes);
  assert.match(scopes, /:role\/"?.*"Ref":"Worker/, "the role by its name");
  assert.ok(scopes.includes("direct") && scopes.includes("jobs/"), scopes);
});

test("pattern of keys without a star at its end is refused", () => {
  for (const keys of [["billing"], ["*/billing"], ["a*b*"]]) {
    assert.throws(() => synthesise({}, (lock, stack) => lock.grantUse(worker(stack), { keys })), /one \*, at its end/);
  }
});

test("takeovers are checked by clock only where asked for", () => {
  assert.strictEqual(environment(synthesise({})).LEASEHOLD_TAKEOVER_CLOCK_CHECK, "false");
  const template = synthesise({ takeoverClockCheck: true });
  assert.strictEqual(environment(template).LEASEHOLD_TAKEOVER_CLOCK_CHECK, "true");
});

test("unsafe combinations are refused", () => {
  assert.throws(() => synthesise({ authorizer: LeaseholdAuthorizer.JWT, jwtIssuer: "https://issuer" }), /jwtAudience/);
  assert.throws(() => synthesise({ authorizer: LeaseholdAuthorizer.NONE, ownerBinding: true }), /ownerBinding/);
  assert.throws(() => synthesise({ functionUrl: true }), /LeaseholdFunctions.ONE/);
});

test("wakeWaiters needs a table with a stream", () => {
  const stack = new Stack(new App(), "Test");
  const table = dynamodb.Table.fromTableName(stack, "Table", "locks");
  assert.throws(() => new Leasehold(stack, "Leasehold", { codeDirectory, table, wakeWaiters: true }), /stream/);
  assert.throws(() => synthesise({}, (lock) => lock.alarmWakerFailed("WakerFailed")), /wakeWaiters/);
  synthesise({ wakeWaiters: true }, (lock) => lock.alarmWakerFailed("WakerFailed")).resourceCountIs(
    "AWS::CloudWatch::Alarm",
    1,
  );
});

test("grantMutex lets the grantee sleep where executions are woken", () => {
  for (const wakeWaiters of [false, true]) {
    const template = synthesise({ wakeWaiters }, (lock, stack) => lock.grantMutex(worker(stack)));
    const [policy] = Object.entries(template.findResources("AWS::IAM::Policy")).filter(([id]) =>
      id.startsWith("Worker"),
    );
    assert.strictEqual(JSON.stringify(policy).includes("dynamodb:PutItem"), wakeWaiters);
  }
});

test("function serves the holder's three operations behind its URL", () => {
  const template = synthesise({ functions: LeaseholdFunctions.ONE, functionUrl: true });
  const handlers = Object.values(template.findResources("AWS::Lambda::Function")).map((fn) => fn.Properties.Handler);
  assert.ok(handlers.includes("acquire") && !handlers.includes("heartbeat") && !handlers.includes("release"), handlers);
  template.hasResourceProperties("AWS::Lambda::Url", { AuthType: "AWS_IAM" });
});

test("watches wait within a reservation of their own", () => {
  const template = synthesise({ watchConcurrency: 7 });
  template.hasResourceProperties("AWS::Lambda::Function", { Handler: "watch", ReservedConcurrentExecutions: 7 });
});

test("authorizer of every route follows the property", () => {
  for (const [authorizer, type] of [
    [undefined, "AWS_IAM"],
    [LeaseholdAuthorizer.NONE, "NONE"],
  ]) {
    const routes = Object.values(synthesise({ authorizer }).findResources("AWS::ApiGatewayV2::Route"));
    assert.strictEqual(routes.length, 16);
    for (const route of routes) assert.strictEqual(route.Properties.AuthorizationType, type);
  }
  const jwt = { authorizer: LeaseholdAuthorizer.JWT, jwtIssuer: "https://issuer", jwtAudience: ["a"] };
  const routes = Object.values(synthesise(jwt).findResources("AWS::ApiGatewayV2::Route"));
  for (const route of routes) assert.ok(route.Properties.AuthorizationType === "JWT" && route.Properties.AuthorizerId);
});

test("alarms watch the metrics of this stack", () => {
  const template = synthesise({}, (lock) => {
    lock.alarmLostLocks("Lost", 3);
    lock.alarmUnavailable("Unavailable");
    lock.alarmServerErrors("ServerErrors");
    lock.alarmCleanUpFailed("CleanUpFailed");
    lock.alarmCleanUpNotStarted("CleanUpNotStarted");
  });
  template.resourceCountIs("AWS::CloudWatch::Alarm", 5);
  template.hasResourceProperties("AWS::CloudWatch::Alarm", {
    Namespace: "Leasehold",
    MetricName: "Lost",
    Threshold: 3,
    Dimensions: Match.arrayWith([{ Name: "stack", Value: { Ref: "AWS::StackName" } }]),
  });
});

test("table is kept, and its policy follows the property", () => {
  synthesise({}).hasResource("AWS::DynamoDB::Table", { DeletionPolicy: "RetainExceptOnCreate" });
});
