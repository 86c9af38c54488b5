//! Many callers, one lock.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Target;
use crate::bench::{ACQUIRE_ALL, Bench, Lock, fresh, http_client, merged};
use crate::reply::{Grant, Reply};

/// Lets `callers` race for sets of locks, and for one lock: `rounds` times when it is released, and `rounds` times when
/// it is held and all callers observed the same version. Exactly one must win each time, with a higher fencing token
/// than all before, and the others must be shown the winner.
///
/// # Panics
/// Panics where a race ends otherwise.
pub async fn races(target: &Target, callers: usize, rounds: usize) {
    let http = http_client();
    let lock = Bench::new(target, http.clone()).lock();
    // Each round has its own bench, so that its answers are searched for the lease ids of this round only.
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
    for round in 0..rounds {
        race_for_sets(&afresh().bench, callers, round).await;
    }
}

/// Lets `callers` race, each for three of nine locks, all or none. A winner must have all of its locks, and a loser
/// none.
async fn race_for_sets(bench: &Bench, callers: usize, round: usize) {
    const LOCKS: usize = 9;
    let locks: Vec<Lock> = (0..LOCKS).map(|_| bench.lock()).collect();
    let wanted =
        |caller: usize| [0, 1 + caller % 3, 4 + (caller + round) % 4].map(|offset| (caller * 2 + offset) % LOCKS);
    let start = Arc::new(Barrier::new(callers));
    let mut runners: JoinSet<(usize, Reply)> = (0..callers)
        .map(|caller| {
            let (bench, start) = (bench.clone(), Arc::clone(&start));
            let keys: Value = wanted(caller).iter().map(|index| locks[*index].with_key(json!({}))).collect();
            let body = json!({ "keys": keys, "ownerName": format!("runner {caller}"), "leaseId": fresh("lease") });
            async move {
                start.wait().await;
                (caller, bench.post(ACQUIRE_ALL, &body).await)
            }
        })
        .collect();
    let mut owners: Vec<Option<String>> = vec![None; LOCKS];
    let mut tokens = vec![None; LOCKS];
    while let Some(runner) = runners.join_next().await {
        let (caller, reply) = runner.expect("no panic");
        if reply.status() != 200 {
            assert!(matches!(reply.status(), 423 | 429), "{reply}");
            continue;
        }
        let token = reply.ok()["fencingToken"].clone();
        for index in wanted(caller) {
            assert_eq!(owners[index].replace(format!("runner {caller}")), None, "{reply}\n    took what is held");
            tokens[index] = Some(token.clone());
        }
    }
    assert!(owners.iter().any(Option::is_some), "nobody won");
    for ((lock, owner), token) in locks.iter().zip(owners).zip(tokens) {
        match owner {
            Some(owner) => {
                let view = lock.get().await.ok();
                assert_eq!(
                    (view["ownerName"].as_str(), Some(&view["fencingToken"])),
                    (Some(owner.as_str()), token.as_ref())
                );
            }
            None => assert_eq!(lock.row().await, None, "nothing is left of those who lost"),
        }
    }
}

/// Runs one round. Returns the winner, after a check against all other answers.
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

/// The number of permits in the race.
const PERMITS: usize = 5;

/// Lets `callers` race for five permits, `rounds` times while they are free, and `rounds` times while dead holders have
/// them. Exactly five must win each time, with tokens above all before, and no permit may leak.
///
/// # Panics
/// If more or fewer win, a token does not rise, or the permits do not add up.
pub async fn permit_races(target: &Target, callers: usize, rounds: usize) {
    let http = http_client();
    let lock = Bench::new(target, http.clone()).lock();
    let afresh = || Lock { bench: Bench::new(target, http.clone()), ..lock.clone() };
    let mut last_token = 0;
    for round in 0..rounds * 2 {
        let dead: Vec<Value> = if round == 0 { Vec::new() } else { holders(&afresh()).await };
        let leaves_dead = round % 2 == 1;
        if !leaves_dead {
            for holder in &dead {
                let fields = json!({ "holderId": holder["holderId"], "version": holder["version"] });
                let reply = lock.bench.post("/v1/semaphore/break", &lock.with_key(fields)).await;
                reply.released("released");
            }
        }
        let observed = if leaves_dead { dead } else { Vec::new() };
        let tokens = race_for_permits(&afresh(), callers, &observed).await;
        assert_eq!(tokens.len(), PERMITS, "round {round}: {tokens:?}");
        assert!(tokens.iter().all(|token| *token > last_token), "round {round}: {tokens:?} after {last_token}");
        last_token = *tokens.iter().max().expect("five");
        assert_eq!(holders(&afresh()).await.len(), PERMITS, "round {round}");
    }
}

/// Returns the holders as an observer names them, after a check that they have all permits.
async fn holders(lock: &Lock) -> Vec<Value> {
    let view = lock.bench.get("/v1/semaphore", &lock.parameters()).await.ok();
    assert_eq!(view["available"], 0, "{view}");
    let named = |holder: &Value| json!({ "holderId": holder["holderId"], "version": holder["version"], "permits": holder["permits"] });
    view["holders"].as_array().expect("a list").iter().map(named).collect()
}

/// Runs one round, and returns the tokens of the winners. Each runner names one of `observed` as dead, if there are
/// any.
async fn race_for_permits(lock: &Lock, callers: usize, observed: &[Value]) -> Vec<u64> {
    let start = Arc::new(Barrier::new(callers));
    let mut runners: JoinSet<Reply> = (0..callers)
        .map(|number| {
            let (lock, start) = (lock.clone(), Arc::clone(&start));
            let dead: Vec<_> = observed.iter().cycle().skip(number).take(observed.len().min(1)).cloned().collect();
            let fields = json!({
                "ownerName": format!("runner {number}"), "leaseId": fresh("lease"), "capacity": PERMITS, "observed": dead
            });
            async move {
                start.wait().await;
                lock.bench.post("/v1/semaphore/acquire", &lock.with_key(fields)).await
            }
        })
        .collect();
    let mut tokens = Vec::new();
    while let Some(reply) = runners.join_next().await {
        let reply = reply.expect("no panic");
        match reply.status() {
            200 => tokens.push(reply.ok()["fencingToken"].as_u64().expect("a number")),
            _ => drop(reply.held()),
        }
    }
    tokens
}
