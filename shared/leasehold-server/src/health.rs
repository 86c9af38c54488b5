//! The probes: whether the service works, and whether it takes requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_engine::Engine;
use leasehold_wire::operation::HEALTH;
use leasehold_wire::{HealthRequest, Problem, ProblemType};

use crate::routes::{READY, probe};
use crate::terraform::{self, States};

/// The state that the probes check.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    pub(crate) locks: Service,
    pub(crate) engine: Option<Engine>,
    pub(crate) table: String,
    pub(crate) states: Option<Arc<States>>,
    pub(crate) stopping: Arc<AtomicBool>,
}

impl Health {
    /// `/v1/health` and `/v1/ready`.
    pub(crate) fn routes(self) -> Router {
        let ready = self.clone();
        probe(HEALTH.path, move || {
            let health = self.clone();
            async move { health.check().await }
        })
        .merge(probe(READY, move || {
            let ready = ready.clone();
            async move { ready.check_ready().await }
        }))
    }

    /// Goes ahead of ordinary requests, as holders do: a service that is busy is not broken.
    async fn check(&self) -> Result<(), Problem> {
        leasehold_engine::urgent(self.check_table()).await?;
        match &self.states {
            Some(states) => terraform::check(Arc::clone(states)).await,
            None => Ok(()),
        }
    }

    async fn check_table(&self) -> Result<(), Problem> {
        self.locks.health(&Caller::unrestricted(), HealthRequest::default()).await?;
        if let Some(engine) = &self.engine {
            engine.check_writes(&self.table).await.map_err(|error| {
                tracing::error!(error, "writes do not reach the database");
                Problem::new(ProblemType::Unavailable, "The database takes no writes: it is full, read-only or gone.")
            })?;
        }
        Ok(())
    }

    async fn check_ready(&self) -> Result<(), Problem> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Problem::new(ProblemType::Unavailable, "The service is stopping."));
        }
        self.check().await
    }
}
