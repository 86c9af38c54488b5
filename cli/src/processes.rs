//! The processes that a command started, and all their descendants.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep_until};

use crate::failure::status;

/// The interval between two looks at the processes.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Makes orphans among this process's descendants its own children, instead of the system's. All descendants stay in
/// reach, whatever their sessions and groups. Outside Linux, orphans do escape.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "cannot keep track of orphans");
    }
}

/// What [`reap`] found.
pub(crate) struct Reaped {
    /// The status of the awaited process, if it has ended.
    pub(crate) status: Option<WaitStatus>,
    /// Whether this process has no child any more. One that adopts orphans then has no descendant: the kernel counts
    /// them, while a list of processes misses one that forks and ends faster than the list is read.
    pub(crate) none_left: bool,
}

/// Reaps all children that have ended, adopted ones too.
pub(crate) fn reap(awaited: Pid) -> Reaped {
    let mut status = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(ended) if ended.pid() == Some(awaited) => status = Some(ended),
            Ok(ended) if ended.pid().is_some() => {}
            outcome => return Reaped { status, none_left: outcome == Err(Errno::ECHILD) },
        }
    }
}

/// Returns all running descendants of `root`, without `root` itself and without zombies.
pub(crate) fn descendants(root: Pid) -> Vec<Pid> {
    let all = all_processes();
    let mut found = vec![root.as_raw()];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(all.iter().filter(|process| process.parent == parent).map(|process| process.id));
        next += 1;
    }
    let runs = |id: &i32| all.iter().any(|process| process.id == *id && !process.is_dead);
    found.into_iter().skip(1).filter(runs).map(Pid::from_raw).collect()
}

/// Sends a signal to all descendants of `root`. A stopped process is continued, so that it can handle the signal.
pub(crate) fn signal_descendants(root: Pid, signal: Signal) {
    for process in descendants(root) {
        // The process may have ended by itself, which is as good.
        let _ = kill(process, signal);
        let _ = kill(process, Signal::SIGCONT);
    }
}

/// Waits until this process has no descendant, or `deadline` has come. Returns whether it has none.
pub(crate) async fn wait_for_descendants(deadline: Instant) -> bool {
    loop {
        if reap(Pid::this()).none_left {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep_until(Instant::now() + LOOK).await;
    }
}

/// Returns the exit status that a shell would report.
pub(crate) fn exit_code(ended: WaitStatus) -> ExitCode {
    match ended {
        WaitStatus::Exited(_, code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => {
            ExitCode::from(status::SIGNALLED + u8::try_from(signal as i32).unwrap_or_default())
        }
        // `reap` reports no other status.
        _ => ExitCode::FAILURE,
    }
}

#[derive(Debug, PartialEq)]
struct Process {
    id: i32,
    parent: i32,
    is_dead: bool,
}

fn all_processes() -> Vec<Process> {
    let Ok(folders) = fs::read_dir("/proc") else { return ask_ps() };
    let stat = |folder: fs::DirEntry| fs::read_to_string(folder.path().join("stat")).ok();
    folders.flatten().filter_map(stat).filter_map(|stat| parse_stat(&stat)).collect()
}

/// Asks `ps`, on systems without `/proc`.
fn ask_ps() -> Vec<Process> {
    let listing = Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat="]).output();
    let listing = listing.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&listing).lines().filter_map(parse_ps).collect()
}

/// Parses `pid (name) state ppid …`, where the name may contain anything.
fn parse_stat(stat: &str) -> Option<Process> {
    let id = stat.split(' ').next()?.parse().ok()?;
    let mut rest = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = rest.next()?;
    Some(Process { id, parent: rest.next()?.parse().ok()?, is_dead: is_dead(state) })
}

/// Parses `pid ppid state`.
fn parse_ps(line: &str) -> Option<Process> {
    let mut words = line.split_whitespace();
    let id = words.next()?.parse().ok()?;
    let parent = words.next()?.parse().ok()?;
    Some(Process { id, parent, is_dead: is_dead(words.next()?) })
}

/// Whether the process is a zombie.
fn is_dead(state: &str) -> bool {
    state.starts_with(['Z', 'X'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_may_have_anything_in_it() {
        let process = |id, parent, is_dead| Some(Process { id, parent, is_dead });
        assert_eq!(parse_stat("12 (sleep) S 7 12 7 0 -1"), process(12, 7, false));
        assert_eq!(parse_stat("12 (a) Z 9 (b)) R 7 12 7"), process(12, 7, false));
        assert_eq!(parse_stat("12 (sh) Z 7 12 7"), process(12, 7, true));
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_ps("  12     7 Ss+"), process(12, 7, false));
        assert_eq!(parse_ps("  12     7 Z"), process(12, 7, true));
        assert_eq!(parse_ps(""), None);
    }

    #[test]
    fn ps_tells_the_same() {
        let me = i32::try_from(std::process::id()).unwrap();
        let mine = |processes: Vec<Process>| processes.into_iter().find(|process| process.id == me);
        assert_eq!(mine(ask_ps()), mine(all_processes()));
    }

    #[test]
    fn children_of_children_are_found() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let id = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        assert_eq!(descendants(id).len(), 1, "the sleep");
        assert!(descendants(Pid::this()).contains(&id));
        signal_descendants(id, Signal::SIGKILL);
        shell.wait().unwrap();
        assert!(descendants(id).is_empty());
    }
}
