//! The agent over TCP: who is let in. Certificates are made here; more of this is in `cluster/vm-service/tests/remote.rs`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use agent_service::{Options, Server};
use control::v1::GetHostRequest;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use support::{Agent, Host};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tower::service_fn;
use vm_service::{Remote, TlsFiles};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, in PEM.
fn identity(name: &str, of: &Authority) -> (String, String) {
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &**of).unwrap().pem(), key.serialize_pem())
}

fn begin(host: &Host, hosts: &Authority, orchestrators: &Authority) -> Server {
    let (certificate, key) = identity("h1.example", hosts);
    let write = |name: &str, text: &str| {
        let path = host.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let files = TlsFiles {
        certificate: write("own.pem", &certificate),
        key: write("own.key", &key),
        client_ca: write("clients.pem", &orchestrators.pem()),
    };
    let remote = Some(Remote { address: "127.0.0.1:0".parse().unwrap(), files });
    Server::begin(Options { remote, ..host.options() }).unwrap()
}

/// The host's name, for whoever has this identity and takes the agent for one of this name.
async fn ask(
    address: SocketAddr,
    hosts: &Authority,
    (certificate, key): (String, String),
    name: &'static str,
) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(hosts.der().clone()).unwrap();
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let connect = service_fn(move |_| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from(name).unwrap();
            Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let channel = Endpoint::from_static("http://h1.example").connect_with_connector(connect).await;
    let mut agent = Agent::new(channel.map_err(|error| format!("{error:?}"))?);
    let host = agent.get_host(GetHostRequest::default()).await;
    host.map(|host| host.into_inner().name).map_err(|status| format!("{status:?}"))
}

#[tokio::test]
async fn orchestrator_of_the_right_authority_is_let_in_and_others_are_not() {
    let (host, hosts, orchestrators) = (Host::new(), authority(), authority());
    let server = begin(&host, &hosts, &orchestrators);
    let address = server.address().unwrap();
    let own = || identity("orchestrator", &orchestrators);
    assert_eq!(ask(address, &hosts, own(), "h1.example").await.unwrap(), "hosts/h1");
    let stranger = identity("orchestrator", &hosts);
    ask(address, &hosts, stranger, "h1.example").await.unwrap_err();
    let error = ask(address, &hosts, own(), "h2.example").await.unwrap_err();
    assert!(error.contains("NotValidForName"), "{error}");
    let error = ask(address, &orchestrators, own(), "h1.example").await.unwrap_err();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    ask(address, &hosts, own(), "h1.example").await.unwrap();
}
