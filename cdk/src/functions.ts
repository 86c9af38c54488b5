/** A function of the service that answers routes of its own. */
export interface RouteFunction {
  readonly name: string;
  /** The function's name in the binary that all share. */
  readonly handler: string;
  readonly description: string;
  readonly paths: string[];
  readonly actions: string[];
  readonly timeoutSeconds?: number;
  /** Whether it makes the lease ids of executions. */
  readonly namesExecutions?: boolean;
}

const ROUTE_FUNCTIONS: RouteFunction[] = [
  {
    name: "Acquire",
    handler: "acquire",
    description: "acquire a lock, or take over a stale one",
    paths: ["/v1/acquire"],
    actions: ["dynamodb:UpdateItem"],
  },
  {
    name: "AcquireAll",
    handler: "acquire-all",
    description: "acquire several locks, all or none",
    paths: ["/v1/acquire-all"],
    actions: ["dynamodb:UpdateItem"],
  },
  {
    name: "Heartbeat",
    handler: "heartbeat",
    description: "renew a lease",
    paths: ["/v1/heartbeat"],
    actions: ["dynamodb:UpdateItem"],
  },
  {
    name: "Release",
    handler: "release",
    description: "give a lock back",
    paths: ["/v1/release"],
    actions: ["dynamodb:UpdateItem"],
  },
  {
    name: "Break",
    handler: "break",
    description: "an operator's forced release",
    paths: ["/v1/break"],
    actions: ["dynamodb:UpdateItem"],
  },
  { name: "Get", handler: "get", description: "look at a lock", paths: ["/v1/lock"], actions: ["dynamodb:GetItem"] },
  {
    name: "List",
    handler: "list",
    description: "list locks",
    paths: ["/v1/locks"],
    actions: ["dynamodb:Scan", "dynamodb:Query"],
    timeoutSeconds: 29,
  },
  {
    name: "Semaphore",
    handler: "semaphore",
    description: "semaphores, over HTTP and for direct invocations",
    paths: ["", "/acquire", "/heartbeat", "/release", "/enqueue", "/break", "/capacity"].map(
      (path) => `/v1/semaphore${path}`,
    ),
    actions: ["dynamodb:UpdateItem", "dynamodb:GetItem"],
    namesExecutions: true,
  },
  {
    name: "Health",
    handler: "health",
    description: "whether the table answers",
    paths: ["/v1/health"],
    actions: ["dynamodb:GetItem"],
  },
];

const WATCH_FUNCTION: RouteFunction = {
  name: "Watch",
  handler: "watch",
  description: "wait until a lock changes",
  paths: ["/v1/watch"],
  actions: ["dynamodb:GetItem"],
  // The longest wait is 20 seconds, and a gateway waits for no longer than this.
  timeoutSeconds: 29,
};

/** The operations that the function Acquire serves as well, where a stack has one function for them. */
const SERVED_BY_ACQUIRE = ["Heartbeat", "Release"];

/** Returns the functions behind the API. The one of the path `/v1/health` also answers every unknown path. */
export function routeFunctions(oneFunction: boolean, watches: boolean): RouteFunction[] {
  const all = watches ? [...ROUTE_FUNCTIONS, WATCH_FUNCTION] : ROUTE_FUNCTIONS;
  if (!oneFunction) {
    return all;
  }
  const served = all.filter(({ name }) => SERVED_BY_ACQUIRE.includes(name)).flatMap(({ paths }) => paths);
  return all
    .filter(({ name }) => !SERVED_BY_ACQUIRE.includes(name))
    .map((fn) => (fn.name === "Acquire" ? { ...fn, paths: [...fn.paths, ...served] } : fn));
}

/** The actions of direct invocations on the table. */
export const INVOKE_ACTIONS = ["dynamodb:UpdateItem", "dynamodb:GetItem"];

/** The actions of the clean-up after executions on the table. */
export const CLEANUP_ACTIONS = ["dynamodb:UpdateItem", "dynamodb:GetItem"];
