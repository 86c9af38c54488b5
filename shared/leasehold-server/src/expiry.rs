//! Time to live in the embedded tables, in the background.

use std::time::Duration;

use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// The longest pause between two rounds: an item is gone ten minutes after its time, and its second round.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Deletes the items whose time is over, again and again, and sooner where rows are kept for a shorter time than a
/// pause. The first round waits for the holders, who may have been without the service.
///
/// Time counts from the start of the service: where the clock jumps ahead, or the machine sleeps, items stay for longer
/// than they should, and none goes too early.
pub(crate) async fn expire_repeatedly(engine: Engine, clock: Clock, retention: Duration) {
    let pause = retention.min(LONGEST_PAUSE);
    let (begun, begun_ms) = (Instant::now(), clock.now_ms());
    let mut rounds = engine.expiry();
    let mut ticks = interval_at(begun + pause, pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let passed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now_ms = clock.now_ms().min(begun_ms.saturating_add(passed));
        match rounds.round(now_ms / 1000).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "items whose time to live is over are deleted"),
            Err(error) => tracing::warn!(error, "items whose time to live is over stay"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use aws_sdk_dynamodb::Client;
    use aws_sdk_dynamodb::types::AttributeValue;
    use leasehold_protocol::{TableSchema, ensure_table};
    use tokio::time::sleep;

    use super::*;

    const START_MS: u64 = 1_800_000_000_000;
    const WEEK_MS: i64 = 7 * 24 * 3600 * 1000;

    /// A table with rows whose times are these many milliseconds after the start, and the clock's lead over the time
    /// that passes.
    async fn started(times_ms: &[i64]) -> (Client, Arc<AtomicU64>) {
        let engine = Engine::memory().expect("it opens");
        let client = Client::from_conf(engine.sdk_config().build());
        let schema = TableSchema::new("locks");
        ensure_table(&client, &schema).await.expect("created");
        for time in times_ms {
            let expires = AttributeValue::N((START_MS.saturating_add_signed(*time) / 1000).to_string());
            let put = client.put_item().table_name("locks").item("key", AttributeValue::S(time.to_string()));
            put.item("expireAt", expires).send().await.expect("written");
        }
        let lead = Arc::new(AtomicU64::new(0));
        let (begun, told) = (Instant::now(), Arc::clone(&lead));
        let clock = Clock::from_fn(move || {
            START_MS + told.load(Ordering::Relaxed) + u64::try_from(begun.elapsed().as_millis()).expect("small")
        });
        tokio::spawn(expire_repeatedly(engine, clock, Duration::from_hours(1)));
        (client, lead)
    }

    #[allow(clippy::disallowed_methods, reason = "the clock is paused")]
    async fn pass(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    async fn keys(client: &Client) -> Vec<String> {
        let items = client.scan().table_name("locks").send().await.expect("read").items.unwrap_or_default();
        let mut keys: Vec<_> = items.iter().map(|item| item["key"].as_s().expect("a text").clone()).collect();
        keys.sort();
        keys
    }

    #[tokio::test(start_paused = true)]
    async fn row_goes_within_ten_minutes_of_its_time() {
        let (client, _) = started(&[0, 600_000, WEEK_MS]).await;
        pass(290).await;
        assert_eq!(keys(&client).await.len(), 3);
        pass(320).await;
        assert_eq!(keys(&client).await, ["600000", "604800000"]);
        pass(600).await;
        assert_eq!(keys(&client).await, ["604800000"]);
    }

    /// Their holders were without the service, and may come back now.
    #[tokio::test(start_paused = true)]
    async fn row_that_is_over_at_the_start_stays_for_two_rounds() {
        let (client, _) = started(&[-3_600_000]).await;
        pass(590).await;
        assert_eq!(keys(&client).await.len(), 1);
        pass(20).await;
        assert!(keys(&client).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_row_goes_when_the_clock_jumps_ahead() {
        let (client, lead) = started(&[0, WEEK_MS]).await;
        pass(60).await;
        lead.store(52 * WEEK_MS.unsigned_abs(), Ordering::Relaxed);
        pass(3600).await;
        assert_eq!(keys(&client).await, ["604800000"]);
    }
}
