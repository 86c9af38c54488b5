// Synthesises the construct and looks at what comes of it. scripts/cdk.sh deploys it to a local AWS.
const assert = require("node:assert");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { test } = require("node:test");
const { App, Stack } = require("aws-cdk-lib");
const { Template, Match } = require("aws-cdk-lib/assertions");
const dynamodb = require("aws-cdk-lib/aws-dynamodb");
const iam = require("aws-cdk-lib/aws-iam");
const lambda = require("aws-cdk-lib/aws-lambda");
const sfn = require("aws-cdk-lib/aws-stepfunctions");
const {
  Leasehold,
  LeaseholdAuthorizer,
  LeaseholdFunctions,
  LeaseholdReleaseShift,
  LeaseholdRestApi,
  LeaseholdTableDeletionPolicy,
} = require("../lib");

const codeDirectory = fs.mkdtempSync(path.join(os.tmpdir(), "leasehold-cdk-"));
for (const binary of ["leasehold-locks", "leasehold-transactions"]) {
  fs.mkdirSync(path.join(codeDirectory, binary));
  fs.writeFileSync(path.join(codeDirectory, binary, "bootstrap"), binary);
}

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
  const [fn] = Object.values(template.findResources("AWS::Lambda::Function", { Properties: { Handler: "read" } }));
  return fn.Properties.Environment.Variables;
}

function made(template, type) {
  return Object.values(template.findResources(type));
}

function keyScopes(template) {
  return JSON.stringify(environment(template).LEASEHOLD_KEY_SCOPES);
}

test("function gets the layer and the policy of a holder", () => {
  const template = synthesise({ agentLayerBucket: "releases", agentLayerVersion: "9.8.7" }, (lock, stack) => {
    const holder = new lambda.Function(stack, "Holder", {
      runtime: lambda.Runtime.NODEJS_22_X,
      handler: "index.handler",
      code: lambda.Code.fromInline("exports.handler = () => 1"),
      layers: [lock.agentLayerArm64],
      architecture: lambda.Architecture.ARM_64,
    });
    holder.role.addManagedPolicy(lock.holderPolicy);
  });
  const [[layer, { Properties }]] = Object.entries(template.findResources("AWS::Lambda::LayerVersion")).filter(([id]) =>
    id.includes("Arm64"),
  );
  assert.deepStrictEqual(Properties.CompatibleArchitectures, ["arm64"]);
  assert.ok(JSON.stringify(Properties.Content).includes("-aarch64.zip"));
  const [policy] = Object.keys(template.findResources("AWS::IAM::ManagedPolicy"));
  template.hasResourceProperties("AWS::Lambda::Function", { Handler: "index.handler", Layers: [{ Ref: layer }] });
  template.hasResourceProperties("AWS::IAM::Role", { ManagedPolicyArns: Match.arrayWith([{ Ref: policy }]) });
  assert.deepStrictEqual(made(synthesise({}), "AWS::Lambda::LayerVersion"), []);
});

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

test("parameters that a rule of the template refuses are refused", () => {
  assert.throws(() => synthesise({ authorizer: LeaseholdAuthorizer.JWT, jwtIssuer: "https://issuer" }), /JwtAudience/);
  assert.throws(() => synthesise({ authorizer: LeaseholdAuthorizer.NONE, ownerBinding: true }), /OwnerBinding/);
  assert.throws(() => synthesise({ functionUrl: true }), /FunctionUrl needs Functions one/);
  assert.throws(() => synthesise({ vpcSubnetIds: ["subnet-1"] }), /VpcSecurityGroupIds/);
  synthesise({ vpcSubnetIds: ["subnet-1"], vpcSecurityGroupIds: ["sg-1"] });
});

test("number beyond its bounds is refused", () => {
  assert.throws(() => synthesise({ memoryMb: 64 }), /memoryMb must be a number from 128 to 10240/);
});

test("wakeWaiters needs a table with a stream", () => {
  const stack = new Stack(new App(), "Test");
  const table = dynamodb.Table.fromTableName(stack, "Table", "locks");
  assert.throws(() => new Leasehold(stack, "Leasehold", { codeDirectory, table, wakeWaiters: true }), /stream/);
  assert.throws(() => new Leasehold(stack, "Past", { codeDirectory, table, historyDays: 7 }), /stream/);
  const tableArn = "arn:aws:dynamodb:eu-west-1:123456789012:table/locks";
  const tableStreamArn = `${tableArn}/stream/2026-11-22T07:00:00.000`;
  const template = synthesise({ wakeWaiters: true }, (_lock, stack) => {
    const table = dynamodb.Table.fromTableAttributes(stack, "Table", { tableArn, tableStreamArn });
    const other = new Stack(stack, "Other");
    new Leasehold(other, "Leasehold", { codeDirectory, table, wakeWaiters: true });
    assert.ok(
      JSON.stringify(Template.fromStack(other).toJSON()).includes("table/locks/stream/2026-11-22T07:00:00.000"),
    );
  });
  assert.strictEqual(made(template, "AWS::Pipes::Pipe").length, 2);
  assert.strictEqual(made(synthesise({}), "AWS::Pipes::Pipe").length, 0);
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

test("grantMutex grants the use of the key of the waiters' table", () => {
  const key = "arn:aws:kms:eu-west-1:123456789012:key/tables";
  for (const [props, wanted] of [
    [{ wakeWaiters: true, tableKmsKeyArn: key }, true],
    [{ wakeWaiters: true }, false],
    [{ tableKmsKeyArn: key }, false],
  ]) {
    const template = synthesise(props, (lock, stack) => lock.grantMutex(worker(stack)));
    const [policy] = Object.entries(template.findResources("AWS::IAM::Policy")).filter(([id]) =>
      id.startsWith("Worker"),
    );
    const statements = policy[1].Properties.PolicyDocument.Statement;
    const granted = statements.filter((one) => one.Action === "kms:Decrypt");
    assert.strictEqual(granted.length, wanted ? 1 : 0, JSON.stringify(statements));
    for (const one of granted) {
      assert.strictEqual(one.Resource, key);
      assert.ok(JSON.stringify(one.Condition.StringEquals["kms:ViaService"]).includes("dynamodb."));
    }
  }
});

test("construct leaves out what its region lacks", () => {
  const props = { codeDirectory, functions: LeaseholdFunctions.ONE, functionUrl: true, wakeWaiters: true };
  for (const [region, url, waiters] of [
    ["ca-west-1", false, false],
    ["ap-south-2", false, true],
    ["eu-west-1", true, true],
  ]) {
    const stack = new Stack(new App(), "Test", { env: { account: "123456789012", region } });
    const lock = new Leasehold(stack, "Leasehold", props);
    lock.grantMutex(worker(stack));
    assert.deepStrictEqual([lock.functionUrl !== undefined, lock.waitersTable !== undefined], [url, waiters], region);
    const template = Template.fromStack(stack);
    assert.strictEqual(made(template, "AWS::Lambda::Url").length, url ? 1 : 0);
    assert.strictEqual(made(template, "AWS::Pipes::Pipe").length, waiters ? 2 : 0);
  }
});

test("stage throttles the routes of operators", () => {
  const throttled = (props) =>
    Object.keys(made(synthesise(props), "AWS::ApiGatewayV2::Stage")[0].Properties.RouteSettings);
  assert.ok(!throttled({}).includes("ANY /v1/transactions/unlock"), "a stage knows no route that is not there");
  const all = throttled({ transactionTableArns: ["arn:aws:dynamodb:eu-west-1:123456789012:table/accounts"] });
  assert.ok(all.includes("ANY /v1/transactions/unlock") && all.includes("ANY /v1/break"), all);
});

test("one function serves a holder behind its URL", () => {
  const template = synthesise({ functions: LeaseholdFunctions.ONE, functionUrl: true });
  const handlers = made(template, "AWS::Lambda::Function").map((fn) => fn.Properties.Handler);
  assert.ok(handlers.includes("acquire") && !handlers.includes("hold") && !handlers.includes("ask"), handlers);
  assert.strictEqual(made(template, "AWS::Lambda::Url").length, 1);
  assert.strictEqual(made(synthesise({}), "AWS::Lambda::Url").length, 0);
});

test("watches wait within a reservation of their own", () => {
  const watches = (props) =>
    made(synthesise(props), "AWS::Lambda::Function").filter((fn) => fn.Properties.Handler === "watch");
  const [watch] = watches({ watchConcurrency: 7 });
  assert.strictEqual(watch.Properties.ReservedConcurrentExecutions, 7);
  assert.deepStrictEqual(watches({}), []);
});

test("authorizer of every route follows the property", () => {
  for (const [authorizer, type] of [
    [undefined, "AWS_IAM"],
    [LeaseholdAuthorizer.NONE, "NONE"],
  ]) {
    const routes = made(synthesise({ authorizer }), "AWS::ApiGatewayV2::Route");
    assert.strictEqual(routes.length, 19);
    for (const route of routes) assert.strictEqual(route.Properties.AuthorizationType, type);
  }
  const jwt = { authorizer: LeaseholdAuthorizer.JWT, jwtIssuer: "https://issuer", jwtAudience: ["a"] };
  const template = synthesise(jwt);
  for (const route of made(template, "AWS::ApiGatewayV2::Route"))
    assert.strictEqual(route.Properties.AuthorizationType, "JWT");
  assert.strictEqual(made(template, "AWS::ApiGatewayV2::Authorizer").length, 1);
});

test("functions run the code of their binary", () => {
  const code = (fn) => fn.Properties.Code.S3Key;
  const handlers = (props) =>
    new Map(made(synthesise(props), "AWS::Lambda::Function").map((fn) => [fn.Properties.Handler, code(fn)]));
  assert.ok(!handlers({}).has("transact"));
  const all = handlers({ transactionTableArns: ["arn:aws:dynamodb:eu-west-1:123456789012:table/accounts"] });
  assert.ok(all.get("transact") === all.get("sweep") && all.get("sweep") !== all.get("ask"), [...all]);
  assert.ok(/^[0-9a-f]{64}\.zip$/.test(all.get("ask")) && all.get("ask") === all.get("cleanup"), [...all]);
});

test("alias moves by CodeDeploy where a shift is asked for", () => {
  const template = synthesise({ release: "one", releaseShift: LeaseholdReleaseShift.CANARY10_PERCENT10_MINUTES });
  const [alias] = made(template, "AWS::Lambda::Alias");
  const { DeploymentGroupName } = alias.UpdatePolicy.CodeDeployLambdaAliasUpdate;
  assert.ok(DeploymentGroupName.Ref in template.toJSON().Resources, DeploymentGroupName);
});

test("deployment of the REST API changes with the parameters", () => {
  const deployment = (props) =>
    Object.keys(synthesise({ restApi: "regional", ...props }).findResources("AWS::ApiGateway::Deployment"))[0];
  assert.notStrictEqual(deployment({}), deployment({ functions: LeaseholdFunctions.ONE }));
  assert.strictEqual(deployment({}), deployment({}));
});

test("rule of cleanUpAfter may fill the queue of dead letters", () => {
  const template = synthesise({}, (lock, stack) => {
    lock.cleanUpAfter("AfterMine", sfn.StateMachine.fromStateMachineName(stack, "Mine", "mine"));
  });
  const [policy] = made(template, "AWS::SQS::QueuePolicy");
  const senders = policy.Properties.PolicyDocument.Statement[0].Condition.ArnEquals["aws:SourceArn"];
  const all = made(template, "AWS::Events::Rule").filter((rule) => rule.Properties.Targets[0].DeadLetterConfig);
  assert.deepStrictEqual(senders.length, all.length, JSON.stringify(senders));
  const rules = all.filter((rule) => JSON.stringify(rule).includes("ABORTED"));
  assert.deepStrictEqual(rules.length, 2, JSON.stringify(rules));
  for (const { Properties } of rules) {
    assert.ok(Properties.Targets[0].DeadLetterConfig.Arn, JSON.stringify(Properties));
    assert.deepStrictEqual(Properties.EventPattern.detail.$or, rules[0].Properties.EventPattern.detail.$or);
  }
});

test("alarms watch the metrics of this stack", () => {
  const template = synthesise(
    { alarmTopicArn: "arn:aws:sns:eu-west-1:123456789012:alarms", lostLocksAlarmCount: 3 },
    (lock) => {
      assert.ok(lock.alarm("LostLocksAlarm").alarmArn);
    },
  );
  template.hasResourceProperties("AWS::CloudWatch::Alarm", {
    Namespace: "Leasehold",
    MetricName: "Lost",
    Threshold: 3,
    Dimensions: Match.arrayWith([{ Name: "stack", Value: { Ref: "AWS::StackName" } }]),
  });
});

test("table is kept, and its policy follows the property", () => {
  synthesise({}).hasResource("AWS::DynamoDB::Table", {
    DeletionPolicy: "RetainExceptOnCreate",
    UpdateReplacePolicy: "Retain",
  });
  const trial = synthesise({ tableDeletionPolicy: LeaseholdTableDeletionPolicy.DELETE });
  trial.hasResource("AWS::DynamoDB::Table", { DeletionPolicy: "Delete", UpdateReplacePolicy: "Retain" });
});

test("stack is the one of the snapshot", () => {
  const { Resources } = synthesise({
    watchConcurrency: 10,
    wakeWaiters: true,
    historyDays: 30,
    terraformStates: true,
    restApi: LeaseholdRestApi.REGIONAL,
    transactionTableArns: ["arn:aws:dynamodb:eu-west-1:123456789012:table/accounts"],
    release: "one",
  }).toJSON();
  // The names of resources outlive a deployment: another name is another resource. Hashes of code and parameters are left out.
  const names = Object.entries(Resources)
    .filter(([, { Type }]) => !["AWS::ApiGateway::Deployment", "AWS::CDK::Metadata"].includes(Type))
    .map(([name, { Type }]) => `${name}: ${Type}`);
  const snapshot = `${names.sort().join("\n")}\n`;
  const file = path.join(__dirname, "snapshot.txt");
  if (process.env.UPDATE_SNAPSHOT) fs.writeFileSync(file, snapshot);
  assert.strictEqual(snapshot, fs.readFileSync(file, "utf8"), "run UPDATE_SNAPSHOT=1 npm test, and read the diff");
});
