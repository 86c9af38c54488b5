//! `leasehold cost`, and the figures of the documentation, which it gives.

use std::path::Path;

use serde_json::Value;

use crate::support::{end, folder, leasehold};

async fn cost(args: &[&str]) -> Value {
    let mut command = leasehold(folder().path());
    command.current_dir(std::env::temp_dir()).args(["cost", "--json"]).args(args);
    end(command).await.json()
}

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(path).expect("a page")
}

/// The rows of the tables between two lines of a page, without its code marks.
fn rows(page: &str, from: &str, to: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("{from}"));
    let (part, _) = rest.split_once(to).unwrap_or_else(|| panic!("{to}"));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    part.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---")).map(cells).collect()
}

/// An amount as the documentation writes it: nothing is blank.
fn usd(value: &Value) -> String {
    let usd = value.as_f64().expect("a number");
    if usd == 0.0 { String::new() } else { format!("{usd:.2}") }
}

fn way<'a>(report: &'a Value, name: &str) -> &'a Value {
    let ways = report["ways"].as_array().expect("ways");
    ways.iter().find(|way| way["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[tokio::test]
async fn operations_page_has_the_figures_of_the_command() {
    let (page, report) = (document("operations.md"), cost(&[]).await);
    let found: Vec<Vec<String>> = report["ways"]
        .as_array()
        .expect("ways")
        .iter()
        .map(|way| {
            let amounts =
                ["dynamodb", "requests", "time", "logs", "front", "total", "standing"].map(|of| usd(&way[of]));
            std::iter::once(way["name"].as_str().expect("a name").to_owned()).chain(amounts).collect()
        })
        .collect();
    assert_eq!(
        rows(&page, "A million cycles (acquire and release), in USD", "A heartbeat, and a look")[1..],
        found[..]
    );
    let said: Vec<Vec<String>> = rows(&page, "The prices of the command", "`--price`").split_off(1);
    let prices = report["prices"].as_array().expect("prices").iter();
    let prices: Vec<Vec<String>> = prices
        .map(|price| {
            let text = |of: &str| price[of].as_str().expect("text").to_owned();
            vec![text("name"), price["usd"].to_string(), text("unit")]
        })
        .collect();
    let numbers = |rows: &[Vec<String>]| {
        rows.iter().map(|row| (row[0].clone(), row[1].parse::<f64>().expect("USD"), row[2].clone())).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&said), numbers(&prices));
    let waiting: Vec<Vec<String>> = report["waiting"]
        .as_array()
        .expect("waiters")
        .iter()
        .map(|way| {
            let amount = |of: &str, digits| format!("{:.digits$}", way[of].as_f64().expect("a number"));
            let name = way["name"].as_str().expect("a name").to_owned();
            vec![name, amount("watch", 4), amount("watchLogs", 4), amount("poll", 4), amount("breakEvenSeconds", 2)]
        })
        .collect();
    assert_eq!(rows(&page, "A waiter's hour, in USD", "Polling less often")[1..], waiting[..]);
    // A half of a cycle.
    for (name, half) in [
        ("API", "2.36"),
        ("Function URL (Functions one, FunctionUrl true)", "1.11"),
        ("the client or the command on the table itself", "0.63"),
    ] {
        let total = way(&report, name)["total"].as_f64().expect("a number");
        assert!((total / 2.0 - half.parse::<f64>().expect("a number")).abs() < 0.006, "{name}: {total}");
        assert!(page.contains(half), "{name}");
    }
}

#[tokio::test]
async fn performance_page_has_the_figures_of_the_command() {
    let (page, report) = (document("performance.md"), cost(&["--cycles", "1000000"]).await);
    let table = rows(&page, "## A lock in a Lambda function", "`python3 scripts/lambda-overhead.py");
    for (row, name, total) in [
        ("by way of a Function URL", "Function URL (Functions one, FunctionUrl true)", "2.22"),
        ("the same through the API", "API", "4.72"),
        ("PutItem under a condition", "the client or the command on the table itself", "1.25"),
    ] {
        let said = table.iter().find(|cells| cells[0].contains(row)).and_then(|cells| cells.last());
        assert_eq!(said.map(String::as_str), Some(total));
        assert_eq!(usd(&way(&report, name)["total"]), total);
    }
}

#[tokio::test]
async fn costs_follow_the_options() {
    let (one, ten) = (cost(&[]).await, cost(&["--cycles", "10000000", "--poll", "10s"]).await);
    let total = |report: &Value, name: &str| way(report, name)["total"].as_f64().expect("a number");
    assert!((total(&ten, "API") / total(&one, "API") - 10.0).abs() < 1e-9);
    let poll = |report: &Value| report["waiting"][0]["poll"].as_f64().expect("a number");
    assert!((poll(&one) / poll(&ten) - 10.0).abs() < 1e-9);
    // At the break-even both cost the same.
    let pause = one["waiting"][0]["breakEvenSeconds"].as_f64().expect("a number");
    let watch = |part: &str| one["waiting"][0][part].as_f64().expect("a number");
    assert!((poll(&one) / pause - watch("watch") - watch("watchLogs")).abs() < 1e-9);
    let cheap = cost(&["--price", "write=0", "--price", "read=0"]).await;
    assert_eq!(usd(&way(&cheap, "the client or the command on the table itself")["total"]), "");
    let mut wrong = leasehold(&std::env::temp_dir());
    wrong.args(["cost", "--price", "gold=1"]);
    let refused = end(wrong).await;
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains("there is no price \"gold\"; there are api, "), "{}", refused.stderr);
}
