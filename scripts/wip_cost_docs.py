import json,subprocess,sys
out=json.loads(subprocess.check_output([sys.argv[1],"cost","--json"]))
p='docs/operations.md'
s=open(p).read()
a=s.index("Computed from the list prices of us-east-1"); b=s.index("An operation, granted or refused, is one write unit")
tick=lambda n:n.replace("LogLevel warn","`LogLevel` `warn`").replace("OperationMetrics false","`OperationMetrics` `false`").replace("(Functions one, FunctionUrl true)","(`Functions` `one`, `FunctionUrl` `true`)")
u=lambda v:"" if v==0 else f"{v:.2f}"
prices="".join(f"| `{x['name']}` | {x['usd']} | {x['unit']} |\n" for x in out["prices"])
s=s[:a]+f"""`leasehold cost` computes what is here, from the list prices of us-east-1 at the time of writing, November 2026, without free tiers. It
prints the prices and the assumptions with the result. The prices of the command:

| price | USD | of |
|---|---|---|
{prices}
`--price` replaces one, as in `leasehold cost --cycles 1000000 --price compute=13.33` for functions on `arm64`.

"""+s[b:]
a=s.index("A million cycles (acquire and release), in USD:"); b=s.index("A heartbeat, and a look of a waiter, is half")
rows="".join("| "+" | ".join([tick(w['name'])]+[u(w[k]) for k in ("dynamodb","requests","time","logs","front","total","standing")]).replace("|  |","| |")+" |\n" for w in out["ways"])
rows=rows.replace("|  |","| |").replace("|  |","| |")
s=s[:a]+f"""A million cycles (acquire and release), in USD:

| way | DynamoDB | requests to Lambda | its time | logs | front | together | a month |
|---|---|---|---|---|---|---|---|
{rows}
"""+s[b:]
a=s.index("* Waiters write."); b=s.index("\n\n",a)
w={x["name"]:x for x in out["waiting"]}
wr="".join(f"| {x['name']} | {x['watch']:.4f} | {x['watchLogs']:.4f} | {x['poll']:.4f} | {x['breakEvenSeconds']:.2f} |\n" for x in out["waiting"])
s=s[:b]+f"""
* A stack behind a load balancer or VPC Lattice has a charge for each month, and no price for each request of an API: it is cheaper from
  seven to nine million cycles a month on. The template has neither; a front of yours calls the functions with events that they read.
* Provisioned capacity is paid for when nobody uses it. It is cheaper than on demand where more than 29 % of it is used on average.
* An access log of an HTTP API has all requests or none. The row with a share of it is for a front that samples.
* One `acquire-all` in place of many requests saves requests and costs write units. The locks of ten items that are worked on together can
  also be one lock of the batch, which costs a tenth.

A waiter's hour, in USD. A watch (`WatchConcurrency`) occupies a function while it waits, and its function reads the row twice a second. Who
polls looks each second here (`--poll`):

| by way of | a watch | its lines in the logs | polling | break-even, in seconds |
|---|---|---|---|---|
{wr}
Polling less often than at the break-even costs less than a watch: a watch buys promptness, and no writes on the row, and not a
smaller bill. `serve` has watches for nothing. These watches end after 20 s; each heartbeat of the holder ends one sooner, which costs a request more."""+s[b:]
open(p,'w').write(s)
p='docs/performance.md'
s=open(p).read()
s=s.replace("""What a million protected invocations cost beside their own work, at [the prices of us-east-1](operations.md#costs), where the work
ends before the first heartbeat:
""","""What a million protected invocations cost beside their own work, at [the prices of us-east-1](operations.md#costs), where the work
ends before the first heartbeat. `leasehold cost --cycles 1000000` prints it:
""")
open(p,'w').write(s)
p='CHANGELOG.md'
s=open(p).read()
s=s.replace("### Added\n\n","""### Added

* `leasehold cost` computes what cycles and waiters cost on AWS, by way of each front and with each lever, from prices that it prints and
  `--price` replaces. [docs/operations.md](docs/operations.md#costs)
""",1)
open(p,'w').write(s)
