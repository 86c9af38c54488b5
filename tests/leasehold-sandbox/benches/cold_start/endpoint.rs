//! DynamoDB on loopback: the embedded engine, over HTTP or, as in an account, over TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region};
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use leasehold_engine::Engine;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The files in which the SDK's client finds the certificates that the system trusts, here and in Lambda.
const SYSTEM_BUNDLES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The protocol by which the functions reach DynamoDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

/// One engine, and its address.
pub(crate) struct Endpoint {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    /// The client for the bare SDK calls.
    pub(crate) client: Client,
    connections: Arc<AtomicUsize>,
}

impl Endpoint {
    /// A new engine, with `authority` in front of it for [`Scheme::Https`].
    pub(crate) fn start(scheme: Scheme, authority: &Authority) -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let (inner, address) = listener();
        let exposed = engine.clone();
        serve(async move {
            let inner = TcpListener::from_std(inner).expect("a socket");
            exposed.expose(inner, std::future::pending()).await.expect("it serves");
        });
        let (outer, outer_address) = listener();
        let connections = Arc::new(AtomicUsize::new(0));
        let tls = (scheme == Scheme::Https).then(|| authority.acceptor());
        let count = Arc::clone(&connections);
        serve(async move {
            let outer = TcpListener::from_std(outer).expect("a socket");
            forward(outer, address, tls, count).await;
        });
        let url = match scheme {
            Scheme::Http => format!("http://{outer_address}"),
            Scheme::Https => format!("https://{outer_address}"),
        };
        let client = bare_client(&url, authority);
        Self { engine, url, client, connections }
    }

    /// Returns the number of connections since the last call of this function.
    pub(crate) fn take_connections(&self) -> usize {
        self.connections.swap(0, Ordering::Relaxed)
    }
}

fn listener() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Runs a future on a thread of its own, so that it does not wait for the harness.
fn serve(future: impl Future<Output = ()> + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future);
    });
}

/// Forwards every connection to `engine`, decrypted, and counts the connections.
async fn forward(listener: TcpListener, engine: SocketAddr, tls: Option<TlsAcceptor>, count: Arc<AtomicUsize>) {
    loop {
        let (mut client, _) = listener.accept().await.expect("a connection");
        client.set_nodelay(true).expect("TCP");
        count.fetch_add(1, Ordering::Relaxed);
        let tls = tls.clone();
        tokio::spawn(async move {
            let mut engine = TcpStream::connect(engine).await.expect("it listens");
            engine.set_nodelay(true).expect("TCP");
            // A function that is killed breaks its connection, which is no failure of the endpoint.
            let _ = match tls {
                None => copy_bidirectional(&mut client, &mut engine).await,
                Some(tls) => match tls.accept(client).await {
                    Ok(mut client) => copy_bidirectional(&mut client, &mut engine).await,
                    Err(error) => Err(error),
                },
            };
        });
    }
}

/// A client with the same settings as the functions', and nothing around it.
fn bare_client(url: &str, authority: &Authority) -> Client {
    let trust = TrustStore::empty().with_pem_certificate(authority.certificate.as_bytes());
    let context = TlsContext::builder().with_trust_store(trust).build().expect("a certificate");
    let https = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
    let config = leasehold_dynamodb::configure(aws_sdk_dynamodb::Config::builder())
        .region(Region::from_static("eu-west-1"))
        .credentials_provider(Credentials::new("bench", "bench", Some("token".into()), None, "bench"))
        .http_client(https.tls_context(context).build_https())
        .endpoint_url(url);
    Client::from_conf(config.build())
}

/// A certificate authority for loopback, made for one run.
pub(crate) struct Authority {
    certificate: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signed");
        Self { certificate: issuer.pem(), issuer }
    }

    /// Writes the certificates for the functions to trust: this one, and all that the system trusts, since sorting
    /// those is part of a start.
    pub(crate) fn write_bundle(&self, file: &Path) {
        let system = SYSTEM_BUNDLES.iter().find_map(|bundle| std::fs::read_to_string(bundle).ok());
        let system = system.expect("the system has a bundle of certificates: please install ca-certificates");
        std::fs::write(file, system + "\n" + &self.certificate).expect("a file");
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let chain = vec![CertificateDer::from(certificate)];
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("TLS 1.3").with_no_client_auth().with_single_cert(chain, key);
        TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")))
    }
}
