//! The secret in the lease ids of Step Functions executions.
//!
//! A key of KMS, which never leaves KMS, makes the secret: it is a MAC of a constant. A function asks for it when the
//! first execution names itself, and keeps it in memory. No variable and no table has it.

use std::fmt;

use aws_sdk_kms::Client;
use aws_sdk_kms::primitives::Blob;
use aws_sdk_kms::types::MacAlgorithmSpec;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use leasehold_api::ExecutionSecret;
use leasehold_dynamodb::error_chain;
use leasehold_wire::{Problem, ProblemType};
use tokio::sync::OnceCell;

/// The message whose MAC is the secret. Another message would change the lease ids of all executions.
const MESSAGE: &[u8] = b"leasehold: lease ids of executions";

/// The secret of a stack, or the way to it.
#[derive(Clone, Default)]
pub struct StackSecret {
    kms: Option<(Client, String)>,
    secret: OnceCell<ExecutionSecret>,
}

impl StackSecret {
    /// Takes a secret that is known.
    pub fn known(secret: ExecutionSecret) -> Self {
        Self { kms: None, secret: OnceCell::new_with(Some(secret)) }
    }

    /// Takes the ARN or the id of a key of KMS for HMAC with SHA-256.
    pub fn by_key(client: Client, key: String) -> Self {
        Self { kms: Some((client, key)), secret: OnceCell::new() }
    }

    /// Returns the secret. Without a key it is empty, and protects nothing.
    ///
    /// # Errors
    /// `unavailable` where KMS gives no answer, and `misconfigured` where it refuses. The next call asks again.
    pub(crate) async fn get(&self) -> Result<&ExecutionSecret, Problem> {
        // The future of the SDK is deep: compiled into those of its callers it would exceed the limit of the compiler.
        self.secret.get_or_try_init(|| Box::pin(self.ask())).await
    }

    async fn ask(&self) -> Result<ExecutionSecret, Problem> {
        let Some((client, key)) = &self.kms else { return Ok(ExecutionSecret::default()) };
        let request = client.generate_mac().key_id(key).mac_algorithm(MacAlgorithmSpec::HmacSha256);
        let answer = request.message(Blob::new(MESSAGE)).send().await.map_err(|error| {
            let refused = error.raw_response().is_some_and(|response| response.status().is_client_error());
            let kind = if refused { ProblemType::Misconfigured } else { ProblemType::Unavailable };
            tracing::error!(error = error_chain(&error), "no secret of executions");
            Problem::new(kind, "KMS gave no secret for the lease ids of executions. The function's log says why.")
        })?;
        let mac = answer.mac.unwrap_or_else(|| Blob::new([]));
        Ok(ExecutionSecret::new(BASE64_STANDARD.encode(mac)))
    }
}

impl fmt::Debug for StackSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StackSecret(redacted)")
    }
}
