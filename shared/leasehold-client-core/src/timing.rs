//! Pauses and bounds, as pure functions: rules C3, C4, C5 and C7. Randomness is an argument, from 0 to 1. What it makes
//! longer or shorter is a whole number of milliseconds, so that all languages compute the same.

use std::time::Duration;

/// The extra time that a caller waits for the background task, beyond the task's own bounds.
pub const SLACK: Duration = Duration::from_secs(1);
/// The poll interval of the Java client.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest poll interval that a caller can choose: about the time of one answer.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A client that returns to a lock which nobody wanted takes it at once for this long. A waiter marks a lock within
/// this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A poll comes later by up to this part of its interval, so that waiters do not move in step.
const POLL_JITTER: f64 = 0.25;
/// A heartbeat comes earlier by up to this part of its interval, so that those of many locks spread out.
const HEARTBEAT_JITTER: f64 = 0.1;
/// Three heartbeats may fail before the lease is over.
const HEARTBEATS_PER_LEASE: u32 = 4;
/// The ceiling of the first pause after a failure; it doubles.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// The ceiling of any such pause.
const LAST_BACKOFF: Duration = Duration::from_secs(2);
/// The longest pause that a server is granted: a proxy must not put a waiter to sleep for a day.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);
/// A request that belongs to a lease may take this part of it, so that there is time for another.
const REQUESTS_PER_LEASE: u32 = 4;
/// No time-out is shorter: an answer from a function that starts cold takes some tens of milliseconds.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
/// The same minimum within a wait: the last look must not be wasted.
const LAST_LOOK: Duration = Duration::from_secs(1);
/// After a failed heartbeat there is time for two more, whatever pause the service asks for.
const TRIES_LEFT: u32 = 3;
/// Near the end of a lease, tries are still this far apart.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The bound of retries while no connection can be made to a service that has never answered: a mistake in the set-up.
pub const UNREACHED_BOUND: Duration = Duration::from_millis(1500);
/// The wait for a release at the end of a block, and when a client closes: an outage does not hold up the end of the
/// work.
const LEAVE_BOUND: Duration = Duration::from_secs(2);
/// The wall clock's lead over a monotonic one that shows a suspension. Adjustments of a clock in use are slower.
const SUSPENSION: Duration = Duration::from_millis(100);
/// Monotonic clocks run at slightly different speeds: an observer adds this part of the lease.
const DRIFT: u128 = 1000;

/// The wait for a release at the end of a block, and when a client closes, with this much of the lease left. The
/// release then goes on in the background.
pub fn leave_bound(left: Duration) -> Duration {
    left.min(LEAVE_BOUND)
}

/// Whether the process was suspended while its monotonic clock and the wall clock went on by so much: in a suspension
/// of the machine, and in one of a virtual machine that its host tells, the monotonic clock stands still. A wall clock
/// that is set forward looks the same, and costs a heartbeat.
pub fn was_suspended(monotonic: Duration, wall: Duration) -> bool {
    wall >= monotonic.saturating_add(SUSPENSION)
}

/// The pause that a `Retry-After` header asks for: whole seconds, up to a minute. A date is ignored, so that no two
/// clocks are compared.
pub fn retry_after(header: Option<&str>) -> Duration {
    let digits = header.unwrap_or_default().trim_matches([' ', '\t']);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Duration::ZERO;
    }
    digits.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs).min(MAX_RETRY_AFTER)
}

/// The whole milliseconds of this part of a range.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a range is far below 2^53 milliseconds, and all languages compute with doubles here"
)]
fn part(range: Duration, fraction: f64) -> Duration {
    Duration::from_millis((range.as_millis() as f64 * fraction).floor() as u64)
}

/// The pause after so many failures in a row, from 1: at most two seconds, or what the service asked for, if that is
/// longer. `chance` is 0 to 1, here and below.
pub fn backoff(failures: u32, retry_after: Duration, chance: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(10);
    let ceiling = FIRST_BACKOFF.saturating_mul(1 << doublings).min(LAST_BACKOFF);
    part(ceiling, chance).max(retry_after)
}

/// The pause before the next poll of a held lock: the interval, and up to a quarter more. A chosen interval overrides
/// the service's, and counts as at least 50 ms. Otherwise the interval is a second, or what the service asked for.
pub fn poll_pause(chosen: Option<Duration>, retry_after: Duration, chance: f64) -> Duration {
    let interval = chosen.map_or(POLL_INTERVAL.max(retry_after), |chosen| chosen.max(MIN_POLL_INTERVAL));
    interval.saturating_add(part(interval, POLL_JITTER * chance))
}

/// The time since a client released a key.
#[derive(Debug, Clone, Copy)]
pub struct Returning {
    /// The time since the last release: any.
    pub released_ago: Duration,
    /// The time since the first of a series of releases after which the client returned at once. `None` where somebody
    /// waited at the last release, as far as the client knows.
    pub unwanted_for: Option<Duration>,
}

impl Returning {
    /// Whether the client returns at once.
    pub fn is_at_once(self) -> bool {
        self.unwanted_for.is_some_and(|series| series < AT_ONCE)
    }
}

/// The pause of a client that returns to a key which it released: one poll, so that others come first. None where
/// nobody waited, for a second.
pub fn return_pause(returning: Option<Returning>, chosen: Option<Duration>, chance: f64) -> Duration {
    returning.filter(|returning| !returning.is_at_once()).map_or(Duration::ZERO, |returning| {
        poll_pause(chosen, Duration::ZERO, chance).saturating_sub(returning.released_ago)
    })
}

/// The time that a waiter waits before it marks the lock: up to a second.
pub fn mark_pause(chance: f64) -> Duration {
    part(AT_ONCE, chance)
}

/// The time-out of a request within its operation: at most `longest`, and a quarter of the lease that it asks for or
/// renews. It is at least 200 ms, unless `longest` is shorter. The durations may have any length.
pub fn request_timeout(longest: Duration, lease: Option<Duration>, left: Duration) -> Duration {
    request_limit(longest, lease).min(left.max(MIN_TIMEOUT))
}

/// The time-out of a request within a wait, by the same rule. It is at least a second, as far as `longest` and the
/// lease allow.
pub fn poll_timeout(longest: Duration, lease: Duration, left: Duration) -> Duration {
    request_limit(longest, Some(lease)).min(left.max(LAST_LOOK))
}

/// The part of a request's time-out that one of so many endpoints has. They share the time of an answer, which is at
/// most `longest`; each has at least 200 ms, as far as three quarters of that time allow. The service's own wait comes
/// on top. However many endpoints are silent, the next one is asked well within the lease.
pub fn endpoint_timeout(limit: Duration, longest: Duration, endpoints: u32) -> Duration {
    if endpoints < 2 {
        return limit;
    }
    let answer = limit.min(longest);
    limit.saturating_sub(answer) + (answer / endpoints).max(MIN_TIMEOUT).min(answer * 3 / 4)
}

fn request_limit(longest: Duration, lease: Option<Duration>) -> Duration {
    lease.map_or(longest, |lease| longest.min((lease / REQUESTS_PER_LEASE).max(MIN_TIMEOUT)))
}

/// The interval of heartbeats that the caller did not choose: a quarter of the lease.
pub fn heartbeat_interval(lease: Duration) -> Duration {
    lease / HEARTBEATS_PER_LEASE
}

/// The longest interval of heartbeats that can keep a lease: half of it.
pub fn longest_heartbeat_interval(lease: Duration) -> Duration {
    lease / 2
}

/// The time from the sending of one heartbeat to the next: the interval, or up to a tenth less.
pub fn heartbeat_pause(interval: Duration, chance: f64) -> Duration {
    interval.saturating_sub(part(interval, HEARTBEAT_JITTER * chance))
}

/// The pause before a heartbeat is retried, with this much of the lease left: at least 10 ms, and at most a third of
/// the rest. With nothing left, the client holds through an outage.
pub fn heartbeat_retry_pause(pause: Duration, left: Duration) -> Duration {
    if left.is_zero() { pause } else { pause.min(left / TRIES_LEFT) }.max(MIN_RETRY_PAUSE)
}

/// Returns the time for which an observer must see one version before its lease is over: the lease and a thousandth of
/// it, since monotonic clocks run at slightly different speeds (rule 12 of docs/protocol.md). The lease may have any
/// length.
pub fn stale_after(lease: Duration) -> Duration {
    let drift = u64::try_from(lease.as_millis().div_ceil(DRIFT)).unwrap_or(u64::MAX);
    lease.saturating_add(Duration::from_millis(drift))
}
