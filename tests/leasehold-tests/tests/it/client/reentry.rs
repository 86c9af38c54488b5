//! Locks are not reentrant: a wait for a lock of the block around is refused.

use leasehold_client::{Client, Error, ErrorKind, Guard, LockRequest, PermitRequest, Wait};
use leasehold_tests::World;
use tokio::time::Instant;

use super::{Network, SECOND};

/// The error of a block that does this under the lock Moe.
async fn under_moe<T: std::fmt::Debug>(client: &Client, work: impl AsyncFnOnce() -> Result<T, Error>) -> Error {
    client.with_lock("Moe", async |_| work().await).await.expect_err("it would never end")
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_lock_of_the_block_around_is_refused_at_once() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let began = Instant::now();
    for error in [
        under_moe(&client, async || client.acquire("Moe").await?.granted().map(drop)).await,
        under_moe(&client, async || client.with_lock("Moe", async |_| Ok::<_, Error>(())).await).await,
        under_moe(&client, async || client.acquire_all(["Larry", "Moe"]).await?.granted().map(drop)).await,
        client
            .with_all(["Larry", "Moe"], async |_| {
                client.with_lock("Other", async |_| client.acquire("Larry").await?.granted().map(drop)).await
            })
            .await
            .expect_err("it would never end"),
    ] {
        assert_eq!(error.kind(), &ErrorKind::WouldDeadlock, "{error}");
        assert!(!error.retryable() && error.to_string().contains("reentrant"), "{error}");
    }
    assert!(began.elapsed() < SECOND);
    assert!(!network.take_log().contains(&"/v1/want".to_owned()), "nothing was asked for in vain");
}

#[tokio::test(start_paused = true)]
async fn wait_is_refused_where_the_block_around_has_all_permits() {
    let client = World::new().await.client("one");
    let pool = client.semaphore("pool", 2);
    let error = pool
        .with_permits(PermitRequest::new().permits(2), async |_| {
            pool.acquire(PermitRequest::new()).await?.granted().map(drop)
        })
        .await
        .expect_err("it would never end");
    assert_eq!(error.kind(), &ErrorKind::WouldDeadlock, "{error}");
    let both = pool
        .with_permits(PermitRequest::new(), async |_| pool.acquire(PermitRequest::new()).await?.granted().map(drop));
    both.await.expect("one is free");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_wait_for_itself_goes_on() {
    let world = World::new().await;
    let (client, other) = (world.client("one"), world.client("two"));
    let done: Result<(), Error> = client
        .with_lock("Moe", async |guard| {
            // Asked once; another key; the same guard; another client.
            client.try_acquire("Moe").await?.granted().expect_err("held");
            client.acquire("Larry").await?.granted().map(drop)?;
            let again = client.acquire(LockRequest::new("Moe").reentrant()).await?.granted()?;
            assert_eq!(again.fencing_token(), guard.fencing_token());
            drop(again);
            let waiting = other.acquire(LockRequest::new("Moe").wait(Wait::AtMost(SECOND)));
            waiting.await?.granted().expect_err("held");
            Ok(())
        })
        .await;
    done.expect("nothing waits for itself");
    let free: Guard = client.acquire("Moe").await.expect("reachable").granted().expect("free");
    drop(free);
}

#[tokio::test(start_paused = true)]
async fn released_lock_of_the_block_around_may_be_waited_for() {
    let client = World::new().await.client("one");
    let done: Result<(), Error> = client
        .with_lock("Moe", async |_| {
            client.with_lock("Larry", async |_| Ok::<_, Error>(())).await?;
            client.acquire("Larry").await?.granted().map(drop)
        })
        .await;
    done.expect("Larry is released");
}
