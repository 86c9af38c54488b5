//! The real binary as a process, and the system's figures about processes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// `leasehold serve` on a free port.
pub(crate) struct Serve {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) dynamodb: Option<SocketAddr>,
}

impl Serve {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary is built");
        let mut lines = BufReader::new(process.stdout.as_mut().expect("piped")).lines().map_while(Result::ok);
        let address = |line: String| {
            let url = line.split("http://").nth(1).expect("an address").split_whitespace().next().expect("an address");
            url.parse().expect("an address")
        };
        let listening = address(lines.next().expect("a first line"));
        let dynamodb = args.contains(&"--expose-dynamodb").then(|| address(lines.nth(1).expect("a third line")));
        Self { process, address: listening, dynamodb }
    }

    pub(crate) fn rss_mb(&self) -> f64 {
        rss_mb(self.process.id())
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The resident memory of a process.
pub(crate) fn rss_mb(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("kB").parse::<f64>().expect("a number") / 1024.0
}

/// The processor time that this process has used, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // The name in parentheses may contain spaces; user and system time are the 12th and 13th field after it.
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}
