//! TLS, with a certificate that is read again when its file changes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, crypto::CryptoProvider};
use tokio_rustls::TlsAcceptor;

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing or not in PEM format.
    #[error("cannot use {}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake.
        message: String,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not supported.
    #[error("cannot use the certificate and its key: {0}")]
    Pair(#[from] rustls::Error),
}

/// The certificate of a service.
#[derive(Debug, Clone)]
pub struct Tls {
    acceptor: Acceptor,
    files: Arc<Files>,
}

#[derive(Clone)]
struct Acceptor(TlsAcceptor);

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAcceptor")
    }
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<(Modified, Arc<CertifiedKey>)>,
}

type Modified = [Option<SystemTime>; 2];

impl Tls {
    /// Reads a certificate chain and its private key, both in PEM format.
    ///
    /// # Errors
    /// A file is missing or wrong, or the two do not belong together.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let modified = modified(certificate, key);
        let current = RwLock::new((modified, Arc::new(load(certificate, key, &provider)?)));
        let files =
            Files { certificate: certificate.to_owned(), key: key.to_owned(), provider: provider.clone(), current };
        let files = Arc::new(files);
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_cert_resolver(files.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: Acceptor(TlsAcceptor::from(Arc::new(config))), files })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.0.clone()
    }

    /// Reads the files again after a change. Wrong files leave the certificate as it is.
    pub fn reload(&self) {
        let Files { certificate, key, provider, current } = &*self.files;
        let modified = modified(certificate, key);
        if modified == current.read().unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        match load(certificate, key, provider) {
            Ok(loaded) => {
                tracing::info!(path = %certificate.display(), "certificate read again");
                *current.write().unwrap_or_else(PoisonError::into_inner) = (modified, Arc::new(loaded));
            }
            // Certificate and key are two files: between their two writes they do not match.
            Err(error) => tracing::warn!(%error, "the certificate stays what it was"),
        }
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone())
    }
}

fn modified(certificate: &Path, key: &Path) -> Modified {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

fn load(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |error: rustls::pki_types::pem::Error| TlsError::File { path: path.clone(), message: error.to_string() }
    };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(wrong(certificate))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(wrong(certificate))?;
    if chain.is_empty() {
        let message = "it has no certificate in PEM format".to_owned();
        return Err(TlsError::File { path: certificate.to_owned(), message });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key))?;
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}
