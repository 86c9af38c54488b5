//! `leasehold cost`: what locks cost on AWS, by way of each front, and what waiters cost.
//!
//! The prices and the assumptions stand here once. A test holds the figures of the documentation to them.

use std::iter::successors;
use std::time::Duration;

use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::Failure;
use crate::duration;
use crate::numbers::whole;
use crate::output::{print, print_json};

/// A list price of us-east-1, without free tiers.
#[derive(Debug, Clone, Serialize)]
struct Price {
    name: &'static str,
    usd: f64,
    unit: &'static str,
}

/// The prices, as of November 2026.
const PRICES: [Price; 12] = [
    Price { name: "api", usd: 1.00, unit: "a million requests to an HTTP API" },
    Price { name: "invocation", usd: 0.20, unit: "a million invocations" },
    Price { name: "compute", usd: 16.67, unit: "a million GB-seconds of a function on x86_64 (13.33 on arm64)" },
    Price { name: "write", usd: 0.625, unit: "a million write units of DynamoDB on demand" },
    Price { name: "read", usd: 0.125, unit: "a million read units" },
    Price { name: "provisioned", usd: 0.000_65, unit: "a provisioned write unit a second, an hour" },
    Price { name: "log", usd: 0.50, unit: "a GB of logs" },
    Price { name: "alb", usd: 0.0225, unit: "a load balancer, an hour" },
    Price { name: "lcu", usd: 0.008, unit: "a unit of its load, an hour (0.4 GB of a function's)" },
    Price { name: "lattice", usd: 0.025, unit: "a service of VPC Lattice, an hour" },
    Price { name: "lattice-request", usd: 0.10, unit: "a million requests to it" },
    Price { name: "lattice-gb", usd: 0.025, unit: "a GB through it" },
];

/// What is assumed beside the prices, for people.
const ASSUMPTIONS: &str = "\
An operation is one write unit (a row below 1 KB) and 8 ms of a function of 256 MB. Its line in the log has 0.5 KB, at
LogLevel warn 0.3 KB; a line of the access log has 0.5 KB. Request and answer have 2 KB together on the wire. A watch
waits for 20 s, and its function reads the row twice a second.";

const MEMORY_GB: f64 = 0.25;
const OPERATION_SECONDS: f64 = 0.008;
/// The sizes of lines of the logs, and of a request with its answer, in KB. A million of a KB is a GB.
const LINE_KB: f64 = 0.5;
const WARN_LINE_KB: f64 = 0.3;
const ACCESS_LINE_KB: f64 = 0.5;
const WIRE_KB: f64 = 2.0;
const LCU_GB: f64 = 0.4;
const WATCH_SECONDS: f64 = 20.0;
const WATCH_READS_A_SECOND: f64 = 2.0;
/// The operations of a cycle: acquire and release.
const CYCLE: f64 = 2.0;
const HOUR: f64 = 3600.0;
const MONTH_HOURS: f64 = 730.0;
const MILLION: f64 = 1e6;
/// The highest number of cycles that is taken for one.
const MOST_CYCLES: u64 = 1_000_000_000_000_000;

/// Show what locks cost on AWS: by way of each front, and with the levers there are.
///
/// Prints the prices that it assumes. --price replaces one of them.
#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// The number of cycles: acquire and release. A heartbeat, or a look of a waiter, is half a cycle.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = whole::<u64>(0..=MOST_CYCLES))]
    cycles: u64,

    /// The number of waiters, to compare a watch with polling.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(0..=u32::MAX.into()))]
    waiters: u32,

    /// The time for which they wait.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse)]
    wait: Duration,

    /// The pause between two looks of a waiter that polls.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    poll: Duration,

    /// The number of locks that one acquire-all takes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<u32>(2..=50))]
    batch: u32,

    /// The share of the provisioned capacity that is used, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = whole::<u32>(1..=100))]
    utilisation: u32,

    /// The share of the requests that a sampled access log has, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = whole::<u32>(0..=100))]
    access_log: u32,

    /// Replace a price, by its name in the output: --price compute=13.33. May be repeated.
    #[arg(long, value_name = "NAME=USD", value_parser = parse_price)]
    price: Vec<(usize, f64)>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Reads the place of a price, and what it is from now on.
/// The highest price that is taken for one.
const MOST_USD: f64 = 1_000_000.0;

fn parse_price(text: &str) -> Result<(usize, f64), String> {
    let (name, usd) = text.split_once('=').ok_or("expected NAME=USD")?;
    let place = PRICES.iter().position(|price| price.name == name);
    let names = || PRICES.map(|price| price.name).join(", ");
    let place = place.ok_or_else(|| format!("there is no price {name:?}; there are {}", names()))?;
    let usd = usd.parse().ok().filter(|usd: &f64| (0.0..=MOST_USD).contains(usd));
    Ok((place, usd.ok_or("a price is a number of USD, such as 0.625, and at most a million")?))
}

/// What a way costs for a million of something, in USD.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Way {
    name: String,
    /// DynamoDB.
    dynamodb: f64,
    /// Requests to Lambda.
    requests: f64,
    /// The time of the functions.
    time: f64,
    logs: f64,
    /// The front: the API, the load balancer.
    front: f64,
    total: f64,
    /// A standing charge a month, beside the total.
    standing: f64,
}

impl Way {
    fn named(&self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self.clone() }
    }

    fn sum(self) -> Self {
        Self { total: self.dynamodb + self.requests + self.time + self.logs + self.front, ..self }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            dynamodb: self.dynamodb * factor,
            requests: self.requests * factor,
            time: self.time * factor,
            logs: self.logs * factor,
            front: self.front * factor,
            total: self.total * factor,
            ..self
        }
    }
}

/// A waiter's hour, in USD.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waiting {
    name: &'static str,
    /// A watch: the time of its function, its reads, its requests.
    watch: f64,
    /// The lines that a watch leaves in the logs.
    watch_logs: f64,
    /// Polling at the pause of the command line.
    poll: f64,
    /// The pause, in seconds, at which polling costs what a watch costs. Who polls less often pays less.
    break_even_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    cycles: u64,
    prices: Vec<Price>,
    ways: Vec<Way>,
    waiters: u32,
    /// The hours for which they wait.
    hours: f64,
    waiting: Vec<Waiting>,
}

/// The prices, with those of the command line.
struct Prices([Price; PRICES.len()]);

impl Prices {
    fn of(&self, name: &str) -> f64 {
        self.0.iter().find(|price| price.name == name).map_or(f64::NAN, |price| price.usd)
    }

    /// A million cycles on the table itself, and by a function without a front.
    fn bases(&self) -> (Way, Way) {
        let table = Way { dynamodb: CYCLE * self.of("write"), ..Way::default() };
        let function = Way {
            requests: CYCLE * self.of("invocation"),
            time: CYCLE * OPERATION_SECONDS * MEMORY_GB * self.of("compute"),
            logs: CYCLE * LINE_KB * self.of("log"),
            ..table.clone()
        };
        (table, function)
    }

    /// The cycles, by each way.
    #[allow(clippy::cast_precision_loss, reason = "a bill is rounded")]
    fn ways(&self, args: &CostArgs) -> Vec<Way> {
        let (table, function) = self.bases();
        let (percent, gb) = (|share: u32| f64::from(share) / 100.0, CYCLE * WIRE_KB);
        let access_log = CYCLE * ACCESS_LINE_KB * self.of("log");
        let warn = CYCLE * WARN_LINE_KB * self.of("log");
        let api = Way { front: CYCLE * self.of("api"), logs: function.logs + access_log, ..function.clone() };
        let sampled = Way { logs: function.logs + access_log * percent(args.access_log), ..api.clone() };
        // What is provisioned is paid for each second; a million writes are 278 unit hours, where all are used.
        let provisioned = CYCLE * MILLION / HOUR * self.of("provisioned") / percent(args.utilisation);
        let batch = f64::from(args.batch);
        // One request acquires all, in a transaction, which doubles its units. Each release is one of its own.
        let share = (1.0 + batch) / (CYCLE * batch);
        let batched = Way { dynamodb: table.dynamodb * 1.5, ..api.clone().times(share) };
        let alb =
            Way { front: gb / LCU_GB * self.of("lcu"), standing: MONTH_HOURS * self.of("alb"), ..function.clone() };
        let lattice = Way {
            front: CYCLE * self.of("lattice-request") + gb * self.of("lattice-gb"),
            standing: MONTH_HOURS * self.of("lattice"),
            ..function.clone()
        };
        let ways = [
            api.named("API"),
            Way { logs: access_log, ..api.clone() }.named("API, LogLevel warn, OperationMetrics false"),
            sampled.named(format!("API, {} % of the access log", args.access_log)),
            Way { dynamodb: provisioned, ..api.clone() }
                .named(format!("API, provisioned capacity, {} % used", args.utilisation)),
            batched.named(format!("API, acquire-all of {}", args.batch)),
            alb.named("ALB"),
            lattice.named("VPC Lattice"),
            function.named("Function URL (Functions one, FunctionUrl true)"),
            Way { logs: warn, ..function.clone() }.named("Function URL, LogLevel warn"),
            function.named("direct invocations"),
            table.named("the client or the command on the table itself"),
            Way { dynamodb: table.dynamodb + self.of("read"), ..table.clone() }
                .named("the Java client: a read, two writes"),
        ];
        ways.into_iter().map(|way| way.sum().times(args.cycles as f64 / MILLION)).collect()
    }

    /// A waiter's hour, through the API and by way of a Function URL.
    fn waiting(&self, args: &CostArgs) -> Vec<Waiting> {
        let (_, function) = self.bases();
        let watches = HOUR / WATCH_SECONDS / MILLION;
        let looks = HOUR / MILLION;
        let of = |name, front: f64, line_kb: f64| {
            let time = HOUR / MILLION * MEMORY_GB * self.of("compute");
            let reads = HOUR / MILLION * WATCH_READS_A_SECOND * self.of("read");
            let watch = time + reads + watches * (self.of("invocation") + front);
            let watch_logs = watches * line_kb * self.of("log");
            let access = (line_kb - LINE_KB) * self.of("log");
            let look = function.clone().sum().total / CYCLE + front + access;
            Waiting {
                name,
                watch,
                watch_logs,
                poll: looks / args.poll.as_secs_f64() * look,
                break_even_seconds: looks * look / (watch + watch_logs),
            }
        };
        vec![of("API", self.of("api"), LINE_KB + ACCESS_LINE_KB), of("Function URL", 0.0, LINE_KB)]
    }
}

pub(crate) fn main(args: &CostArgs) -> Result<(), Failure> {
    let mut prices = Prices(PRICES);
    for (place, usd) in &args.price {
        prices.0[*place].usd = *usd;
    }
    let report = Report {
        cycles: args.cycles,
        ways: prices.ways(args),
        waiters: args.waiters,
        hours: args.wait.as_secs_f64() / HOUR,
        waiting: prices.waiting(args),
        prices: prices.0.to_vec(),
    };
    if args.json { print_json(&report) } else { print(&report.text(args)) }
}

impl Report {
    fn text(&self, args: &CostArgs) -> String {
        let mut ways = table(&["WAY", "DYNAMODB", "REQUESTS", "TIME", "LOGS", "FRONT", "TOGETHER", "A MONTH"]);
        for way in &self.ways {
            let parts = [way.dynamodb, way.requests, way.time, way.logs, way.front].map(usd_or_none);
            let sums = [usd(way.total, 2), usd_or_none(way.standing)];
            ways.add_row(std::iter::once(way.name.clone()).chain(parts).chain(sums));
        }
        let together = f64::from(self.waiters) * self.hours;
        let poll = duration::show(args.poll);
        let mut waiting = table(&["WAITERS", "WATCH", "ITS LOGS", "POLL", "BREAK-EVEN"]);
        for way in &self.waiting {
            let costs = [way.watch, way.watch_logs, way.poll].map(|one| usd(one * together, 4));
            let even = format!("a look each {:.2} s", way.break_even_seconds);
            waiting.add_row(std::iter::once(way.name.to_owned()).chain(costs).chain([even]));
        }
        let mut prices = table(&["PRICE", "USD", "OF"]);
        for price in &self.prices {
            prices.add_row([price.name.to_owned(), price.usd.to_string(), price.unit.to_owned()]);
        }
        format!(
            "{} (acquire and release), in USD:\n{ways}\n\n\
             {} for {}, in USD; who polls looks each {poll}:\n{waiting}\n\
             Polling less often than at the break-even costs less than a watch.\n\n\
             The prices are list prices of us-east-1 of November 2026, without free tiers:\n{prices}\n{ASSUMPTIONS}",
            counted(self.cycles, "cycle"),
            counted(self.waiters.into(), "waiter"),
            duration::show(args.wait),
        )
    }
}

/// An amount with at least so many decimals, and with one that is not zero.
fn usd(amount: f64, least: usize) -> String {
    let scales = successors(Some(1.0), |scale| Some(scale * 10.0)).zip(0_usize..10);
    let shown = |(scale, decimals): &(f64, usize)| *decimals >= least && amount * scale >= 1.0;
    let decimals = scales.into_iter().find(shown).map_or(least, |(_, decimals)| decimals);
    format!("{amount:.decimals$}")
}

/// An amount, where there is one.
fn usd_or_none(amount: f64) -> String {
    if amount == 0.0 { "-".to_owned() } else { usd(amount, 2) }
}

fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// A table whose amounts stand below each other.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(1).take(header.len().saturating_sub(2)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
