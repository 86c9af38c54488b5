import * as path from "node:path";
import { ArnFormat, Aws, Duration, Lazy, RemovalPolicy, Stack } from "aws-cdk-lib";
import * as apigw from "aws-cdk-lib/aws-apigatewayv2";
import { HttpIamAuthorizer, HttpJwtAuthorizer } from "aws-cdk-lib/aws-apigatewayv2-authorizers";
import { HttpLambdaIntegration } from "aws-cdk-lib/aws-apigatewayv2-integrations";
import * as cloudwatch from "aws-cdk-lib/aws-cloudwatch";
import * as dynamodb from "aws-cdk-lib/aws-dynamodb";
import * as events from "aws-cdk-lib/aws-events";
import * as targets from "aws-cdk-lib/aws-events-targets";
import * as iam from "aws-cdk-lib/aws-iam";
import * as lambda from "aws-cdk-lib/aws-lambda";
import * as logs from "aws-cdk-lib/aws-logs";
import * as pipes from "aws-cdk-lib/aws-pipes";
import * as secretsmanager from "aws-cdk-lib/aws-secretsmanager";
import * as sqs from "aws-cdk-lib/aws-sqs";
import * as sfn from "aws-cdk-lib/aws-stepfunctions";
import { Construct } from "constructs";
import { CLEANUP_ACTIONS, INVOKE_ACTIONS, type RouteFunction, routeFunctions } from "./functions";

/** The proof of identity of the API's callers. */
export enum LeaseholdAuthorizer {
  /** Callers prove their identity by a signature, and need `execute-api:Invoke`. */
  IAM = "AWS_IAM",
  /** Callers prove their identity by a token. */
  JWT = "JWT",
  /** Callers prove nothing: everyone who can reach the API may call it. */
  NONE = "NONE",
}

/** How many functions serve acquire, heartbeat and release. */
export enum LeaseholdFunctions {
  /** A function for each. */
  EACH = "each",
  /** One for all three, so that a quiet cycle starts one function cold. */
  ONE = "one",
}

/** Properties of a lock service. */
export interface LeaseholdProps {
  /**
   * The folder that `cargo lambda build --release -p leasehold-functions` filled, such as `target/lambda`.
   */
  readonly codeDirectory: string;
  /**
   * The processor that the functions were built for.
   * @default x86_64
   */
  readonly architecture?: lambda.Architecture;
  /**
   * The proof of identity of callers.
   * @default LeaseholdAuthorizer.IAM
   */
  readonly authorizer?: LeaseholdAuthorizer;
  /**
   * With JWT, the issuer of the tokens.
   * @default none
   */
  readonly jwtIssuer?: string;
  /**
   * With JWT, the audiences or client ids that are accepted.
   * @default none
   */
  readonly jwtAudience?: string[];
  /**
   * With JWT, the claim that names the bearer of a token.
   * @default sub
   */
  readonly jwtClaim?: string;
  /**
   * A table to use in place of a new one.
   * @default a new table
   */
  readonly table?: dynamodb.ITable;
  /**
   * The name of the table's partition key, a string.
   * @default key
   */
  readonly partitionKeyName?: string;
  /**
   * The name of the table's sort key, a string.
   * @default the table has none
   */
  readonly sortKeyName?: string;
  /**
   * The fate of the table when the stack is deleted.
   * @default RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
   */
  readonly removalPolicy?: RemovalPolicy;
  /**
   * Whether DynamoDB refuses to delete the table. A failed first deployment then leaves the table behind.
   * @default false
   */
  readonly deletionProtection?: boolean;
  /**
   * Whether only the principal that acquired a lock may renew or release it.
   * @default false
   */
  readonly ownerBinding?: boolean;
  /**
   * Patterns of the keys that direct invocations, and so all state machines, may touch. Applies as soon as one grant
   * names keys.
   * @default every key
   */
  readonly directKeys?: string[];
  /**
   * The time for which DynamoDB keeps an untouched lock, beyond its lease.
   * @default seven days
   */
  readonly retention?: Duration;
  /**
   * The largest difference of clocks, for callers that ask for staleness `clock`.
   * @default one second
   */
  readonly clockSkew?: Duration;
  /**
   * Whether a takeover by an observed version also needs the service's clock to be past the lease, by more than
   * `clockSkew`. Otherwise the caller's word is enough.
   * @default false
   */
  readonly takeoverClockCheck?: boolean;
  /**
   * How many functions serve acquire, heartbeat and release.
   * @default LeaseholdFunctions.EACH
   */
  readonly functions?: LeaseholdFunctions;
  /**
   * With one function, whether acquire, heartbeat and release can also be reached by a Function URL. Callers sign for the
   * service `lambda`.
   * @default false
   */
  readonly functionUrl?: boolean;
  /**
   * Watches that may wait at a time, each in an invocation of up to 20 seconds.
   * @default 0, which leaves the route out
   */
  readonly watchConcurrency?: number;
  /**
   * Whether the stack wakes executions that sleep until a lock is free. A table of your own needs a stream of new images.
   * @default false
   */
  readonly wakeWaiters?: boolean;
  /**
   * Memory of each function.
   * @default 256
   */
  readonly memorySize?: number;
  /**
   * Level of the functions' log.
   * @default info
   */
  readonly logLevel?: string;
  /**
   * The time for which logs are kept.
   * @default one month
   */
  readonly logRetention?: logs.RetentionDays;
  /**
   * Names of the state machines that run-under-lock may start, with `*` for any characters.
   * @default locked-*
   */
  readonly runnableStateMachines?: string;
  /**
   * The time after the end of an execution at which the clean-up releases its locks once more.
   * @default one minute
   */
  readonly lateRequests?: Duration;
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

/** A lock service: an HTTP API, a function for each operation, a table, and state machines. */
export class Leasehold extends Construct {
  /** The table of the locks. */
  public readonly table: dynamodb.ITable;
  /** The API. */
  public readonly api: apigw.HttpApi;
  /** The API's address, without a slash at the end. */
  public readonly url: string;
  /** The function for direct invocations. */
  public readonly invokeFunction: lambda.Function;
  /** The state machine that runs another one while it holds a lock. */
  public readonly runUnderLock: sfn.StateMachine;
  /** The target of rules about the ends of executions that use the mutex steps. */
  public readonly cleanUp: sfn.StateMachine;

  /** The Function URL, with a slash at the end. */
  public readonly functionUrl?: string;
  /** The table in which executions that sleep leave their tokens. */
  public readonly waitersTable?: dynamodb.Table;

  private readonly routes: RouteFunction[];
  private readonly waker?: sfn.StateMachine;
  private readonly functions: { [name: string]: lambda.Function } = {};
  private readonly scopes: { principal: string; prefixes: string[] }[] = [];
  private readonly deadLetters: sqs.Queue;

  constructor(
    scope: Construct,
    id: string,
    private readonly props: LeaseholdProps,
  ) {
    super(scope, id);
    if (props.authorizer === LeaseholdAuthorizer.JWT && !(props.jwtIssuer && props.jwtAudience?.length)) {
      throw new Error("LeaseholdAuthorizer.JWT needs jwtIssuer and jwtAudience.");
    }
    if (props.ownerBinding && props.authorizer === LeaseholdAuthorizer.NONE) {
      throw new Error("ownerBinding tells callers apart, which LeaseholdAuthorizer.NONE does not.");
    }
    if (props.functionUrl && props.functions !== LeaseholdFunctions.ONE) {
      throw new Error("functionUrl needs LeaseholdFunctions.ONE.");
    }
    if (props.wakeWaiters && props.table && !props.table.tableStreamArn) {
      throw new Error("wakeWaiters needs a table with a stream.");
    }
    this.routes = routeFunctions(props.functions === LeaseholdFunctions.ONE, (props.watchConcurrency ?? 0) > 0);
    this.table = props.table ?? this.newTable();
    const logGroup = new logs.LogGroup(this, "FunctionLog", {
      retention: props.logRetention ?? logs.RetentionDays.ONE_MONTH,
      removalPolicy: RemovalPolicy.DESTROY,
    });
    const secret = new secretsmanager.Secret(this, "ExecutionSecret", {
      description: "Makes the lease ids of Step Functions executions",
      generateSecretString: { passwordLength: 48, excludePunctuation: true },
      removalPolicy: RemovalPolicy.DESTROY,
    });
    const executions = { LEASEHOLD_EXECUTION_SECRET: secret.secretValue.unsafeUnwrap() };

    for (const { name, handler, description, actions, timeoutSeconds, namesExecutions } of this.routes) {
      this.addFunction(
        name,
        handler,
        description,
        actions,
        logGroup,
        timeoutSeconds,
        namesExecutions ? executions : undefined,
      );
    }
    this.invokeFunction = this.addFunction(
      "Invoke",
      "invoke",
      "all operations, for direct invocations",
      INVOKE_ACTIONS,
      logGroup,
      undefined,
      executions,
    );
    const cleanup = this.addFunction(
      "Cleanup",
      "cleanup",
      "releases what an execution held that ended without doing so",
      CLEANUP_ACTIONS,
      logGroup,
      30,
      executions,
    );

    this.api = this.newApi();
    this.url = this.api.apiEndpoint;
    this.cleanUp = this.newCleanUp(cleanup);
    this.runUnderLock = this.newRunUnderLock();
    this.deadLetters = new sqs.Queue(this, "CleanupDeadLetters", {
      retentionPeriod: Duration.days(14),
      encryption: sqs.QueueEncryption.SQS_MANAGED,
    });
    this.cleanUpAfter("CleanupRule", this.runUnderLock);
    if (props.functionUrl) {
      this.functionUrl = this.functions.Acquire.addFunctionUrl({ authType: lambda.FunctionUrlAuthType.AWS_IAM }).url;
    }
    if (props.wakeWaiters) {
      this.waitersTable = this.newWaitersTable();
      this.waker = this.newWaker(this.waitersTable);
      this.addPipes(this.waitersTable, this.waker);
    }
  }

  /** Lets the grantee acquire, renew and release locks through the API. */
  public grantUse(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["POST/v1/acquire", "POST/v1/heartbeat", "POST/v1/release"], options);
  }

  /** Lets the grantee look at locks through the API. */
  public grantRead(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["GET/v1/lock", "GET/v1/locks"], options);
  }

  /** Lets the grantee look at locks and break them: for operators. */
  public grantBreak(grantee: iam.IGrantable, options: LeaseholdGrantOptions = {}): iam.Grant {
    return this.grantRoutes(grantee, ["GET/v1/lock", "POST/v1/break"], options);
  }

  /** Lets a state machine with the mutex steps do its work, its own clean-up and its sleep included. */
  public grantMutex(grantee: iam.IGrantable): void {
    this.invokeFunction.grantInvoke(grantee);
    this.cleanUp.grantStartExecution(grantee);
    this.waitersTable?.grant(grantee, "dynamodb:PutItem");
  }

  /** Starts the clean-up after executions of this state machine that may have ended with a lock held. */
  public cleanUpAfter(id: string, machine: sfn.IStateMachine): events.Rule {
    return new events.Rule(this, id, {
      description: "Executions that ended without releasing their lock",
      eventPattern: {
        source: ["aws.states"],
        detailType: ["Step Functions Execution Status Change"],
        detail: {
          stateMachineArn: [machine.stateMachineArn],
          $or: [
            { status: ["ABORTED", "TIMED_OUT"] },
            {
              status: ["FAILED"],
              error: [null, { exists: false }, { prefix: "States." }, "ChildNotStopped", "LockNotReleased"],
            },
          ],
        },
      },
      targets: [
        new targets.SfnStateMachine(this.cleanUp, {
          deadLetterQueue: this.deadLetters,
          maxEventAge: Duration.hours(1),
          retryAttempts: 60,
        }),
      ],
    });
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

  /** Locks that were granted. */
  public metricGranted(options?: cloudwatch.MetricOptions): cloudwatch.Metric {
    return this.metric("Granted", "acquire", options);
  }

  /** Holders that found at a heartbeat that their lock was gone. */
  public metricLost(options?: cloudwatch.MetricOptions): cloudwatch.Metric {
    return this.metric("Lost", "heartbeat", options);
  }

  /** Heartbeats without an answer from DynamoDB. */
  public metricUnavailable(options?: cloudwatch.MetricOptions): cloudwatch.Metric {
    return this.metric("Unavailable", "heartbeat", options);
  }

  /** An alarm for more lost locks than this in five minutes. */
  public alarmLostLocks(id: string, count: number = 5): cloudwatch.Alarm {
    return this.alarm(id, this.metricLost(), count, "Holders found at a heartbeat that they had lost their lock");
  }

  /** An alarm for heartbeats without an answer from DynamoDB. */
  public alarmUnavailable(id: string): cloudwatch.Alarm {
    return this.alarm(id, this.metricUnavailable(), 0, "Heartbeats ended without an answer from DynamoDB");
  }

  /** An alarm for answers of the API with 5xx; the failures of all its functions are among them. */
  public alarmServerErrors(id: string): cloudwatch.Alarm {
    const metric = this.api.metricServerError({ statistic: "Sum", period: Duration.minutes(5) });
    return this.alarm(id, metric, 0, "The API answered with 5xx");
  }

  /** An alarm for clean-ups that failed for good. */
  public alarmCleanUpFailed(id: string): cloudwatch.Alarm {
    const metric = this.cleanUp.metricFailed({ statistic: "Sum", period: Duration.minutes(5) });
    return this.alarm(
      id,
      metric,
      0,
      "A clean-up after an execution failed; its lock is free one lease after the last heartbeat",
    );
  }

  /** An alarm for executions for which no clean-up could be started. */
  public alarmCleanUpNotStarted(id: string): cloudwatch.Alarm {
    const metric = this.deadLetters.metricApproximateNumberOfMessagesVisible({
      statistic: "Maximum",
      period: Duration.minutes(5),
    });
    return this.alarm(id, metric, 0, "No clean-up could be started for an execution that ended");
  }

  /** An alarm for a waker that failed. */
  public alarmWakerFailed(id: string): cloudwatch.Alarm {
    if (!this.waker) {
      throw new Error("alarmWakerFailed needs wakeWaiters.");
    }
    const metric = this.waker.metricFailed({ statistic: "Sum", period: Duration.minutes(5) });
    return this.alarm(id, metric, 0, "The waker failed; executions sleep until their time-out, at most a lease");
  }

  private alarm(id: string, metric: cloudwatch.Metric, threshold: number, alarmDescription: string): cloudwatch.Alarm {
    return metric.createAlarm(this, id, {
      alarmDescription,
      threshold,
      evaluationPeriods: 1,
      comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
      treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
    });
  }

  private grantRoutes(grantee: iam.IGrantable, routes: string[], options: LeaseholdGrantOptions): iam.Grant {
    if (options.keys) {
      this.scopes.push({ principal: principalOf(grantee), prefixes: options.keys.map(prefixOf) });
    }
    return iam.Grant.addToPrincipal({
      grantee,
      actions: ["execute-api:Invoke"],
      resourceArns: routes.map((route) => this.executeApiArn(route)),
    });
  }

  private executeApiArn(route: string): string {
    const arnFormat = ArnFormat.SLASH_RESOURCE_NAME;
    return Stack.of(this).formatArn({
      service: "execute-api",
      resource: this.api.apiId,
      resourceName: `$default/${route}`,
      arnFormat,
    });
  }

  /** The scopes that the grants make; none, as long as no grant names keys. */
  private keyScopes(): string {
    if (this.scopes.length === 0) {
      return "";
    }
    const direct = { principal: "direct", prefixes: (this.props.directKeys ?? ["*"]).map(prefixOf) };
    return Stack.of(this).toJsonString([...this.scopes, direct]);
  }

  private newTable(): dynamodb.Table {
    const {
      partitionKeyName = "key",
      sortKeyName,
      removalPolicy = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    } = this.props;
    return new dynamodb.Table(this, "LockTable", {
      partitionKey: { name: partitionKeyName, type: dynamodb.AttributeType.STRING },
      sortKey: sortKeyName ? { name: sortKeyName, type: dynamodb.AttributeType.STRING } : undefined,
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      timeToLiveAttribute: "expireAt",
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: true },
      encryption: dynamodb.TableEncryption.AWS_MANAGED,
      stream: this.props.wakeWaiters ? dynamodb.StreamViewType.NEW_IMAGE : undefined,
      deletionProtection: this.props.deletionProtection ?? false,
      removalPolicy,
    });
  }

  private addFunction(
    name: string,
    handler: string,
    description: string,
    actions: string[],
    logGroup: logs.ILogGroup,
    timeoutSeconds: number = 6,
    environment: { [name: string]: string } = {},
  ): lambda.Function {
    const { props } = this;
    const role = new iam.Role(this, `${name}FunctionRole`, {
      assumedBy: new iam.ServicePrincipal("lambda.amazonaws.com"),
      managedPolicies: [iam.ManagedPolicy.fromAwsManagedPolicyName("service-role/AWSLambdaBasicExecutionRole")],
      inlinePolicies: {
        table: new iam.PolicyDocument({
          statements: [new iam.PolicyStatement({ actions, resources: [this.table.tableArn] })],
        }),
      },
    });
    const made = new lambda.Function(this, `${name}Function`, {
      role,
      description: `Leasehold: ${description}`,
      code: lambda.Code.fromAsset(path.join(props.codeDirectory, "leasehold-locks")),
      handler,
      runtime: lambda.Runtime.PROVIDED_AL2023,
      architecture: props.architecture ?? lambda.Architecture.X86_64,
      memorySize: props.memorySize ?? 256,
      timeout: Duration.seconds(timeoutSeconds),
      reservedConcurrentExecutions: name === "Watch" ? props.watchConcurrency : undefined,
      logGroup,
      loggingFormat: lambda.LoggingFormat.JSON,
      systemLogLevelV2: lambda.SystemLogLevel.WARN,
      environment: {
        LEASEHOLD_TABLE_NAME: this.table.tableName,
        LEASEHOLD_PARTITION_KEY: props.partitionKeyName ?? "key",
        LEASEHOLD_SORT_KEY: props.sortKeyName ?? "",
        LEASEHOLD_RETENTION_SECONDS: String((props.retention ?? Duration.days(7)).toSeconds()),
        LEASEHOLD_CLOCK_SKEW_MS: String((props.clockSkew ?? Duration.seconds(1)).toMilliseconds()),
        LEASEHOLD_TAKEOVER_CLOCK_CHECK: String(props.takeoverClockCheck ?? false),
        LEASEHOLD_LOG: props.logLevel ?? "info",
        LEASEHOLD_KEY_SCOPES: Lazy.string({ produce: () => this.keyScopes() }),
        LEASEHOLD_OWNER_BINDING: String(props.ownerBinding ?? false),
        LEASEHOLD_JWT_CLAIM: props.jwtClaim ?? "sub",
        LEASEHOLD_METRICS: "true",
        LEASEHOLD_STACK: Aws.STACK_NAME,
        ...environment,
      },
    });
    this.functions[name] = made;
    return made;
  }

  private newApi(): apigw.HttpApi {
    const defaultAuthorizer = this.newAuthorizer();
    const api = new apigw.HttpApi(this, "Api", { description: "Leasehold", defaultAuthorizer });
    const integrations: { [name: string]: HttpLambdaIntegration } = {};
    for (const { name, paths } of this.routes) {
      integrations[name] = new HttpLambdaIntegration(`${name}Integration`, this.functions[name]);
      for (const path of paths) {
        api.addRoutes({ path, methods: [apigw.HttpMethod.ANY], integration: integrations[name] });
      }
    }
    new apigw.HttpRoute(this, "UnknownRoute", {
      httpApi: api,
      routeKey: apigw.HttpRouteKey.DEFAULT,
      integration: integrations.Health,
      authorizer: defaultAuthorizer,
    });
    return api;
  }

  private newAuthorizer(): apigw.IHttpRouteAuthorizer | undefined {
    const { authorizer = LeaseholdAuthorizer.IAM, jwtIssuer = "", jwtAudience = [] } = this.props;
    switch (authorizer) {
      case LeaseholdAuthorizer.IAM:
        return new HttpIamAuthorizer();
      case LeaseholdAuthorizer.JWT:
        return new HttpJwtAuthorizer("JwtAuthorizer", jwtIssuer, { jwtAudience });
      case LeaseholdAuthorizer.NONE:
        return undefined;
    }
  }

  private newCleanUp(cleanup: lambda.Function): sfn.StateMachine {
    const machine = this.newMachine("CleanupStateMachine", "cleanup", {
      CleanupFunctionArn: cleanup.functionArn,
      LateRequestSeconds: String((this.props.lateRequests ?? Duration.minutes(1)).toSeconds()),
    });
    allow(machine, ["lambda:InvokeFunction"], cleanup.functionArn);
    allow(machine, ["states:StopExecution"], this.childArn());
    return machine;
  }

  private newRunUnderLock(): sfn.StateMachine {
    const machine = this.newMachine("RunUnderLock", "run-under-lock", {
      InvokeFunctionArn: this.invokeFunction.functionArn,
      CleanupStateMachineArn: this.cleanUp.stateMachineArn,
    });
    allow(machine, ["lambda:InvokeFunction"], this.invokeFunction.functionArn);
    allow(
      machine,
      ["states:StartExecution", "states:DescribeStateMachine"],
      this.statesArn("stateMachine", this.runnable()),
    );
    allow(machine, ["states:StartExecution"], this.cleanUp.stateMachineArn);
    allow(machine, ["states:DescribeExecution", "states:StopExecution"], this.childArn());
    return machine;
  }

  /** Tokens of executions that sleep. Without the tokens a sleep ends by its time-out. */
  private newWaitersTable(): dynamodb.Table {
    return new dynamodb.Table(this, "WaitersTable", {
      partitionKey: { name: "lock", type: dynamodb.AttributeType.STRING },
      sortKey: { name: "waiter", type: dynamodb.AttributeType.STRING },
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      timeToLiveAttribute: "expireAt",
      stream: dynamodb.StreamViewType.KEYS_ONLY,
      encryption: dynamodb.TableEncryption.AWS_MANAGED,
      removalPolicy: RemovalPolicy.DESTROY,
    });
  }

  private newWaker(waiters: dynamodb.Table): sfn.StateMachine {
    const { partitionKeyName = "key", sortKeyName = "" } = this.props;
    const substitutions = {
      TableName: this.table.tableName,
      PartitionKeyName: partitionKeyName,
      SortKeyName: sortKeyName,
      WaitersTableName: waiters.tableName,
    };
    const machine = this.newMachine("Waker", "waker", substitutions, sfn.StateMachineType.EXPRESS);
    allow(machine, ["dynamodb:GetItem"], this.table.tableArn);
    allow(machine, ["dynamodb:Query", "dynamodb:DeleteItem"], waiters.tableArn);
    // The waker answers every token in the table of the waiters.
    allow(machine, ["states:SendTaskSuccess"], this.statesArn("stateMachine", "*"));
    return machine;
  }

  /** Changes of both tables start the waker. */
  private addPipes(waiters: dynamodb.Table, waker: sfn.StateMachine): void {
    const streams = { freed: this.table.tableStreamArn ?? "", sleepers: waiters.tableStreamArn ?? "" };
    const role = new iam.Role(this, "WakerPipesRole", { assumedBy: new iam.ServicePrincipal("pipes.amazonaws.com") });
    role.addToPolicy(
      new iam.PolicyStatement({
        actions: ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"],
        resources: Object.values(streams),
      }),
    );
    role.addToPolicy(new iam.PolicyStatement({ actions: ["dynamodb:ListStreams"], resources: ["*"] }));
    role.addToPolicy(
      new iam.PolicyStatement({ actions: ["states:StartExecution"], resources: [waker.stateMachineArn] }),
    );
    this.addPipe("FreedPipe", "Locks that became free, to the waker", streams.freed, FREED, role, waker);
    this.addPipe(
      "SleepersPipe",
      "Executions that have begun to sleep, to the waker",
      streams.sleepers,
      SLEEPERS,
      role,
      waker,
    );
  }

  private addPipe(
    id: string,
    description: string,
    source: string,
    patterns: string[],
    role: iam.Role,
    waker: sfn.StateMachine,
  ): void {
    const pipe = new pipes.CfnPipe(this, id, {
      description,
      roleArn: role.roleArn,
      source,
      sourceParameters: {
        dynamoDbStreamParameters: {
          startingPosition: "LATEST",
          batchSize: 10,
          maximumRetryAttempts: 3,
          maximumRecordAgeInSeconds: 300,
        },
        filterCriteria: { filters: patterns.map((pattern) => ({ pattern })) },
      },
      target: waker.stateMachineArn,
      targetParameters: {
        stepFunctionStateMachineParameters: { invocationType: "FIRE_AND_FORGET" },
        // The waker gets only the key of a row.
        inputTemplate: '{"eventSourceARN": <$.eventSourceARN>, "dynamodb": {"Keys": <$.dynamodb.Keys>}}',
      },
    });
    pipe.node.addDependency(role);
  }

  private newMachine(
    id: string,
    definition: string,
    substitutions: { [name: string]: string },
    stateMachineType: sfn.StateMachineType = sfn.StateMachineType.STANDARD,
  ): sfn.StateMachine {
    return new sfn.StateMachine(this, id, {
      stateMachineType,
      definitionBody: sfn.DefinitionBody.fromFile(
        path.join(__dirname, "..", "statemachines", `${definition}.asl.json`),
      ),
      definitionSubstitutions: { ...substitutions, Partition: Aws.PARTITION },
    });
  }

  private runnable(): string {
    return this.props.runnableStateMachines ?? "locked-*";
  }

  private childArn(): string {
    return this.statesArn("execution", `${this.runnable()}:leasehold-*`);
  }

  private statesArn(resource: string, resourceName: string): string {
    return Stack.of(this).formatArn({
      service: "states",
      resource,
      resourceName,
      arnFormat: ArnFormat.COLON_RESOURCE_NAME,
    });
  }
}

/** Rows that are gone or released, and semaphores with permits. A semaphore's heartbeats pass too, while it has some. */
const FREED = [
  '{"eventName": ["REMOVE"]}',
  '{"dynamodb": {"NewImage": {"isReleased": {"S": [{"exists": true}]}}}}',
  '{"dynamodb": {"NewImage": {"leaseholdKind": {"S": ["semaphore"]}, "available": {"N": [{"anything-but": {"prefix": "-"}}]}}}}',
];

const SLEEPERS = ['{"eventName": ["INSERT", "MODIFY"]}'];

function allow(machine: sfn.StateMachine, actions: string[], resource: string): void {
  machine.addToRolePolicy(new iam.PolicyStatement({ actions, resources: [resource] }));
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
