//! Many callers, one lock.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Target;
use crate::bench::{Bench, Lock, fresh, http_client, merged};
use crate::reply::{Grant, Reply};

/// Lets `callers` race for one lock: `rounds` times when it is released, and `rounds` times when it is held and all of
/// them observed the same version. Exactly one must win each time, with a higher fencing token than all before, and
/// the others must be shown the winner.
///
/// # Panics
/// Where that is not so.
pub async fn races(target: &Target, callers: usize, rounds: usize) {
    let http = http_client();
    let lock = Bench::new(target, http.clone()).lock();
    // A bench for each round: every answer of a round is searched for the lease ids of that round, not of all.
    let afresh = || Lock { bench: Bench::new(target, http.clone()), ..lock.clone() };
    let mut holder = lock.hold("the first").await;
    for _ in 0..rounds {
        lock.release(&holder.lease_id, json!({})).await.released("released");
        let winner = race(&afresh(), callers, json!({}), "reacquired").await;
        assert!(winner.token > holder.token, "{} came after {}", winner.token, holder.token);
        holder = winner;
    }
    for _ in 0..rounds {
        let observed = json!({ "observedRecordVersionNumber": holder.rvn });
        let winner = race(&afresh(), callers, observed, "takenOver").await;
        assert!(winner.token > holder.token, "{} came after {}", winner.token, holder.token);
        lock.heartbeat(&holder.lease_id, json!({})).await.lost("taken-over");
        holder = winner;
    }
}

/// One round: the winner, checked against everyone else's answer.
async fn race(lock: &Lock, callers: usize, fields: Value, outcome: &str) -> Grant {
    let start = Arc::new(Barrier::new(callers));
    let mut runners: JoinSet<Reply> = (0..callers)
        .map(|number| {
            let (lock, start) = (lock.clone(), Arc::clone(&start));
            let fields = merged(fields.clone(), json!({ "leaseId": fresh("lease") }));
            async move {
                start.wait().await;
                lock.acquire(&format!("runner {number}"), fields).await
            }
        })
        .collect();
    let mut replies = Vec::with_capacity(callers);
    while let Some(reply) = runners.join_next().await {
        replies.push(reply.expect("no panic"));
    }
    let (winners, losers): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status() == 200);
    let [winner] = winners.as_slice() else { panic!("{} of {callers} won: {winners:?}", winners.len()) };
    let winner = winner.granted(outcome);
    let view = lock.view(&winner, json!({}));
    for loser in losers {
        assert_eq!(loser.held(), view, "{loser}");
    }
    winner
}
