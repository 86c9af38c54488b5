//! Lease ids, in every form in which a service might disclose one.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

/// The minimum length: a shorter lease id may be in an answer by chance.
const SHORTEST: usize = 16;

/// The lease ids of one case. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets(Arc<Mutex<Vec<String>>>);

impl Secrets {
    /// Registers a lease id that no later answer may contain.
    pub(crate) fn learn(&self, lease_id: &str) {
        if lease_id.len() >= SHORTEST {
            self.0.lock().expect("not poisoned").extend(forms(lease_id));
        }
    }

    /// The first of them that `text` contains.
    pub(crate) fn find(&self, text: &str) -> Option<String> {
        self.0.lock().expect("not poisoned").iter().find(|form| text.contains(form.as_str())).cloned()
    }
}

/// SHA-256 of a lease id, as the table stores it.
pub(crate) fn hash(lease_id: &str) -> Vec<u8> {
    Sha256::digest(lease_id).to_vec()
}

fn forms(lease_id: &str) -> Vec<String> {
    let hash = hash(lease_id);
    let hex = hash.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    // Unpadded base64 is a prefix of the padded form.
    let base64 = [lease_id.as_bytes(), &hash]
        .into_iter()
        .flat_map(|bytes| [BASE64_STANDARD_NO_PAD.encode(bytes), BASE64_URL_SAFE_NO_PAD.encode(bytes)]);
    [lease_id.to_owned(), hex.to_uppercase(), hex].into_iter().chain(base64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_id_is_found_in_every_form() {
        let secrets = Secrets::default();
        secrets.learn("0123456789abcdef");
        for text in [
            r#"{"leaseId":"0123456789abcdef"}"#,
            "MDEyMzQ1Njc4OWFiY2RlZg==",
            "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f",
            "9F9F5111F7B27A781F1F1DDDE5EBC2DD2B796BFC7365C9C28B548E564176929F",
            "n59REfeyengfHx3d5evC3St5a/xzZcnCi1SOVkF2kp8=",
            "n59REfeyengfHx3d5evC3St5a_xzZcnCi1SOVkF2kp8",
        ] {
            assert!(secrets.find(text).is_some(), "{text}");
        }
        assert_eq!(secrets.find(r#"{"leaseId":"0123456789abcdeF"}"#), None);
    }
}
