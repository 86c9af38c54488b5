import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { Aws, type CfnResource, Duration, Fn, Lazy, Stack } from "aws-cdk-lib";
import * as cloudwatch from "aws-cdk-lib/aws-cloudwatch";
import * as dynamodb from "aws-cdk-lib/aws-dynamodb";
import * as events from "aws-cdk-lib/aws-events";
import * as targets from "aws-cdk-lib/aws-events-targets";
import * as iam from "aws-cdk-lib/aws-iam";
import * as lambda from "aws-cdk-lib/aws-lambda";
import { Asset } from "aws-cdk-lib/aws-s3-assets";
import * as sqs from "aws-cdk-lib/aws-sqs";
import * as sfn from "aws-cdk-lib/aws-stepfunctions";
import { CfnInclude } from "aws-cdk-lib/cloudformation-include";
import { Construct } from "constructs";
import type { LeaseholdParameters } from "./parameters";
import { Template, type Values } from "./template";

/** Properties of a lock service: the parameters of the template, and more. */
export interface LeaseholdProps extends LeaseholdParameters {
  /**
   * The folder that `cargo lambda build --release -p leasehold-functions` filled, such as `target/lambda`.
   */
  readonly codeDirectory: string;
  /**
   * A table of the same account and region to use in place of a new one. With `wakeWaiters`, it has a stream of new
   * images, and with `historyDays` one of new and old images.
   * @default a new table
   */
  readonly table?: dynamodb.ITable;
  /**
   * Patterns of the keys that direct invocations, and so all state machines, may touch. Applies as soon as one grant
   * names keys.
   * @default every key
   */
  readonly directKeys?: string[];
}

/** Options of a grant. */
export interface LeaseholdGrantOptions {
  /**
   * Patterns of the keys that the grantee may touch, each ending in `*`. As soon as one grant names keys, whoever has
   * no grant with keys may touch none.
   * @default every key
   */
  readonly keys?: string[];
}

/** A lock service: the resources of the SAM template, at most once in a stack. */
export class Leasehold extends Construct {
  /** The table of the locks. */
  public readonly table: dynamodb.ITable;
  /** The API's address, without a slash at the end. */
  public readonly url: string;
  /** The function for direct invocations. */
  public readonly invokeFunction: lambda.IFunction;
  /** The state machine that runs another one while it holds a lock. */
  public readonly runUnderLock: sfn.IStateMachine;
  /** The target of rules about the ends of executions that use the mutex steps. */
  public readonly cleanUp: sfn.IStateMachine;
  /** With `functionUrl`, in regions that have them: the Function URL, with a slash at the end. */
  public readonly functionUrl?: string;
  /** What functions that hold locks need: acquire, heartbeat, release and look, by the API or by direct invocation. */
  public readonly holderPolicy: iam.IManagedPolicy;
  /** With `agentLayerBucket`, the agent as a layer for functions on x86_64. */
  public readonly agentLayer?: lambda.ILayerVersion;
  /** The same for functions on arm64. */
  public readonly agentLayerArm64?: lambda.ILayerVersion;
  /** With `wakeWaiters`, in regions that have pipes: the table in which executions that sleep leave their tokens. */
  public readonly waitersTable?: dynamodb.ITable;

  private readonly template: CfnInclude;
  private readonly scopes: { principal: string; prefixes: string[] }[] = [];
  /** The rules whose events may go to the queue of dead letters. */
  private readonly rules: string[];

  constructor(
    scope: Construct,
    id: string,
    private readonly props: LeaseholdProps,
  ) {
    super(scope, id);
    const template = new Template();
    const parameters = this.valuesOf(template);
    template.check(parameters);
    const decided = template.decided({ ...parameters, "AWS::Region": Stack.of(this).region });
    const templateFile = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "leasehold-")), "template.json");
    fs.writeFileSync(templateFile, JSON.stringify(decided));
    this.template = new CfnInclude(this, "Default", { templateFile, parameters, preserveLogicalIds: false });
    fs.rmSync(path.dirname(templateFile), { recursive: true });
    this.complete(decided.Resources, parameters);

    this.table = props.table ?? dynamodb.Table.fromTableArn(this, "Table", this.attribute("LockTable", "Arn"));
    this.url = this.attribute("Api", "ApiEndpoint");
    const functionArn = this.attribute("InvokeFunction", "Arn");
    this.invokeFunction = lambda.Function.fromFunctionAttributes(this, "Invoke", {
      functionArn,
      sameEnvironment: true,
    });
    this.runUnderLock = sfn.StateMachine.fromStateMachineArn(
      this,
      "Run",
      this.template.getResource("RunUnderLock").ref,
    );
    this.cleanUp = sfn.StateMachine.fromStateMachineArn(
      this,
      "CleanUp",
      this.template.getResource("CleanupStateMachine").ref,
    );
    const has = (name: string) => name in decided.Resources;
    this.functionUrl = has("AcquireFunctionUrl") ? this.attribute("AcquireFunctionUrl", "FunctionUrl") : undefined;
    const holderPolicy = this.template.getResource("HolderPolicy").ref;
    this.holderPolicy = iam.ManagedPolicy.fromManagedPolicyArn(this, "Holder", holderPolicy);
    if (props.agentLayerBucket) {
      const layer = (id: string, resource: string) =>
        lambda.LayerVersion.fromLayerVersionArn(this, id, this.template.getResource(resource).ref);
      this.agentLayer = layer("Agent", "AgentLayer");
      this.agentLayerArm64 = layer("AgentArm64", "AgentLayerArm64");
    }
    if (has("WaitersTable")) {
      this.waitersTable = dynamodb.Table.fromTableArn(this, "Waiters", this.attribute("WaitersTable", "Arn"));
    }
    this.rules = [this.attribute("CleanupRule", "Arn"), this.attribute("RedrivenChildRule", "Arn")];
    const senders = "PolicyDocument.Statement.0.Condition.ArnEquals.aws:SourceArn";
    this.template
      .getResource("CleanupDeadLettersPolicy")
      .addPropertyOverride(senders, Lazy.list({ produce: () => this.rules }));
  }

  /** Lets the grantee acquire, renew and release locks through the API. */
  public grantUse(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["POST/v1/acquire", "POST/v1/heartbeat", "POST/v1/release"], options);
  }

  /** Lets the grantee look at locks through the API. */
  public grantRead(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["GET/v1/lock", "GET/v1/locks", "GET/v1/history"], options);
  }

  /** Lets the grantee look at locks and break them: for operators. */
  public grantBreak(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["GET/v1/lock", "POST/v1/break"], options);
  }

  /** Lets a state machine with the mutex steps do its work, its own clean-up and its sleep included. */
  public grantMutex(grantee: iam.IGrantable): void {
    this.invokeFunction.grantInvoke(grantee);
    this.cleanUp.grantStartExecution(grantee);
    if (!this.waitersTable) {
      return;
    }
    this.waitersTable.grant(grantee, "dynamodb:PutItem");
    if (this.props.tableKmsKeyArn) {
      iam.Grant.addToPrincipal({
        grantee,
        actions: ["kms:Decrypt"],
        resourceArns: [this.props.tableKmsKeyArn],
        conditions: { StringEquals: { "kms:ViaService": `dynamodb.${Aws.REGION}.${Aws.URL_SUFFIX}` } },
      });
    }
  }

  /** Starts the clean-up after executions of this state machine that may have ended with a lock held. */
  public cleanUpAfter(id: string, machine: sfn.IStateMachine): events.Rule {
    const { eventPattern } = this.template.getResource("CleanupRule") as events.CfnRule;
    const { source, "detail-type": detailType, detail } = Stack.of(this).resolve(eventPattern);
    const rule = new events.Rule(this, id, {
      description: "Executions that ended without releasing their lock",
      eventPattern: { source, detailType, detail: { ...detail, stateMachineArn: [machine.stateMachineArn] } },
      targets: [
        new targets.SfnStateMachine(this.cleanUp, {
          deadLetterQueue: sqs.Queue.fromQueueArn(
            this,
            `${id}DeadLetters`,
            this.attribute("CleanupDeadLetters", "Arn"),
          ),
          maxEventAge: Duration.hours(1),
          retryAttempts: 60,
        }),
      ],
    });
    this.rules.push(rule.ruleArn);
    return rule;
  }

  /** A metric of the service in the namespace Leasehold, such as `Lost` of `heartbeat`. */
  public metric(name: string, operation: string, options: cloudwatch.MetricOptions = {}): cloudwatch.Metric {
    return new cloudwatch.Metric({
      namespace: "Leasehold",
      metricName: name,
      dimensionsMap: { stack: Aws.STACK_NAME, operation },
      statistic: "Sum",
      period: Duration.minutes(5),
      ...options,
    });
  }

  /** An alarm of the template, such as `LostLocksAlarm`. */
  public alarm(name: string): cloudwatch.IAlarm {
    return cloudwatch.Alarm.fromAlarmArn(this, name, this.attribute(name, "Arn"));
  }

  private attribute(resource: string, name: string): string {
    return this.template.getResource(resource).getAtt(name).toString();
  }

  /** The values of the template's parameters. */
  private valuesOf(template: Template): Values {
    const { table, wakeWaiters, historyDays } = this.props;
    const given: Values = { keyScopes: Lazy.string({ produce: () => this.keyScopes() }), ...this.props };
    if (table) {
      given.existingTableName = table.tableName;
    }
    if (table && (wakeWaiters || historyDays)) {
      if (!table.tableStreamArn) {
        throw new Error("wakeWaiters and historyDays need a table with a stream.");
      }
      given.existingTableStreamLabel = Fn.select(3, Fn.split("/", table.tableStreamArn));
    }
    const values: Values = {};
    for (const [name, { Type, Default, MinValue = -Infinity, MaxValue = Infinity }] of Object.entries(
      template.parameters,
    )) {
      const property = name[0].toLowerCase() + name.slice(1);
      const value = given[property] ?? Default;
      if (typeof value === "number" && (value < MinValue || value > MaxValue)) {
        throw new Error(`${property} must be a number from ${MinValue} to ${MaxValue}.`);
      }
      const list = Type === "CommaDelimitedList" && !value.length;
      values[name] = list ? [""] : typeof value === "boolean" ? String(value) : value;
    }
    return values;
  }

  /** Completes the included resources by what the template could not say. */
  private complete(resources: Values, values: Values): void {
    const assets: { [binary: string]: Asset } = {};
    for (const [name, { Type, Properties }] of Object.entries(resources)) {
      const resource: CfnResource = this.template.getResource(name);
      if (Type === "AWS::Lambda::Function") {
        const binary = Properties.Code.S3Bucket;
        assets[binary] ??= new Asset(this, binary, { path: path.join(this.props.codeDirectory, binary) });
        (resource as lambda.CfnFunction).code = {
          s3Bucket: assets[binary].s3BucketName,
          s3Key: assets[binary].s3ObjectKey,
        };
      }
      if (Type === "AWS::ApiGateway::Deployment") {
        // A deployment is what the API was when it was made: other parameters need another one.
        const text = JSON.stringify(Stack.of(this).resolve({ ...values, KeyScopes: "" }));
        resource.overrideLogicalId(
          `${this.node.id}${name}${createHash("sha256").update(text).digest("hex").slice(0, 8)}`,
        );
      }
    }
  }

  private grantRoutes(grantee: iam.IGrantable, routes: string[], options: LeaseholdGrantOptions): iam.Grant {
    if (options.keys) {
      this.scopes.push({ principal: principalOf(grantee), prefixes: options.keys.map(prefixOf) });
    }
    const api = Stack.of(this).formatArn({ service: "execute-api", resource: this.template.getResource("Api").ref });
    const resourceArns = routes.map((route) => `${api}/$default/${route}`);
    return iam.Grant.addToPrincipal({ grantee, actions: ["execute-api:Invoke"], resourceArns });
  }

  /** The scopes that the grants make; none, as long as no grant names keys. */
  private keyScopes(): string {
    if (this.scopes.length === 0) {
      return "";
    }
    const direct = { principal: "direct", prefixes: (this.props.directKeys ?? ["*"]).map(prefixOf) };
    return Stack.of(this).toJsonString([...this.scopes, direct]);
  }
}

/** The prefix that a pattern of keys stands for. */
function prefixOf(pattern: string): string {
  if (!pattern.endsWith("*") || pattern.slice(0, -1).includes("*")) {
    throw new Error(`The pattern of keys ${JSON.stringify(pattern)} must have one *, at its end.`);
  }
  return pattern.slice(0, -1);
}

/** The principal by which the service knows the grantee: its role, without a path. */
function principalOf(grantee: iam.IGrantable): string {
  const principal = grantee.grantPrincipal;
  const role = principal as Partial<iam.IRole>;
  if (!role.roleName) {
    throw new Error("A grant with keys needs a grantee that has a role.");
  }
  return `arn:${Aws.PARTITION}:iam::${principal.principalAccount ?? Aws.ACCOUNT_ID}:role/${role.roleName}`;
}
