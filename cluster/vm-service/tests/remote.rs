//! The API over TCP: who is let in, and who is not. Certificates are made here.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use control::v1::GetVmRequest;
use control::v1::vm_service_client::VmServiceClient;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use support::{FakeVm, Folder};
use tessera_vm_service::{Remote, Server, ServerError, TlsError, TlsFiles};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use vmm::control::Desk;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate with its key, in PEM.
struct Identity {
    certificate: String,
    key: String,
}

impl Identity {
    fn of(name: &str, authority: &Authority, expired: bool) -> Self {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &**authority).unwrap().pem();
        Self { certificate, key: key.serialize_pem() }
    }
}

/// Files of a server with its own authority for clients.
struct Rig {
    folder: Folder,
    servers: Authority,
    clients: Authority,
    files: TlsFiles,
    desk: Desk,
}

impl Rig {
    fn new(expired: bool) -> Self {
        let (folder, servers, clients) = (Folder::new(), authority(), authority());
        let own = Identity::of("slice.example", &servers, expired);
        let write = |name: &str, text: &str| {
            let path = folder.0.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            path
        };
        let files = TlsFiles {
            certificate: write("own.pem", &own.certificate),
            key: write("own.key", &own.key),
            client_ca: write("clients.pem", &clients.pem()),
        };
        let desk = Desk::new();
        FakeVm::new().attach(&desk);
        Self { folder, servers, clients, files, desk }
    }

    fn remote(&self) -> Remote {
        Remote { address: "127.0.0.1:0".parse().unwrap(), files: self.files.clone() }
    }

    fn start(&self) -> Server {
        Server::start(&self.desk, Some(&self.remote())).unwrap()
    }

    /// How a call goes of whoever has this identity, or none, and thinks that the server is called so.
    async fn call(
        &self,
        server: &Server,
        identity: Option<&Identity>,
        name: &'static str,
        version: &'static SupportedProtocolVersion,
    ) -> Result<String, String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.servers.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let channel = channel(server.address().unwrap(), config, name).await?;
        let mut vm = VmServiceClient::new(channel);
        let answer = vm.get_vm(GetVmRequest::default()).await;
        answer.map(|vm| vm.into_inner().name).map_err(|status| format!("{status:?}"))
    }
}

async fn channel(
    address: SocketAddr,
    config: ClientConfig,
    name: &'static str,
) -> Result<Channel, String> {
    let connector = TlsConnector::from(Arc::new(config));
    let connect = service_fn(move |_| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from(name).unwrap();
            Ok::<_, io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let endpoint = Endpoint::from_static("http://slice.example");
    endpoint.connect_with_connector(connect).await.map_err(|error| format!("{error:?}"))
}

const NAME: &str = "slice.example";

#[tokio::test]
async fn client_of_the_right_authority_is_let_in() {
    let rig = Rig::new(false);
    let server = rig.start();
    let client = Identity::of("operator", &rig.clients, false);
    let name = rig.call(&server, Some(&client), NAME, &TLS13).await.unwrap();
    assert_eq!(name, support::NAME);
}

#[tokio::test]
async fn others_are_not() {
    let rig = Rig::new(false);
    let server = rig.start();
    let stranger = Identity::of("operator", &authority(), false);
    let of_servers = Identity::of("operator", &rig.servers, false);
    let expired = Identity::of("operator", &rig.clients, true);
    for (who, identity) in [
        ("nobody", None),
        ("of another authority", Some(&stranger)),
        ("of the servers' authority", Some(&of_servers)),
        ("of the past", Some(&expired)),
    ] {
        let error = rig.call(&server, identity, NAME, &TLS13).await;
        assert!(error.is_err(), "{who}: {error:?}");
    }
    // The one who may is still let in.
    let client = Identity::of("operator", &rig.clients, false);
    rig.call(&server, Some(&client), NAME, &TLS13).await.unwrap();
    // But not by an older TLS.
    rig.call(&server, Some(&client), NAME, &TLS12).await.unwrap_err();
    // And the client does not take another server for this one.
    let other = rig.call(&server, Some(&client), "other.example", &TLS13).await.unwrap_err();
    assert!(other.contains("NotValidForName"), "{other}");
}

#[tokio::test]
async fn server_whose_certificate_is_of_the_past_is_not_believed() {
    let rig = Rig::new(true);
    let server = rig.start();
    let client = Identity::of("operator", &rig.clients, false);
    let error = rig.call(&server, Some(&client), NAME, &TLS13).await.unwrap_err();
    assert!(error.contains("Expired"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let rig = Rig::new(false);
    let refused = |files: TlsFiles| {
        let remote = Remote { files, ..rig.remote() };
        Server::start(&rig.desk, Some(&remote)).unwrap_err()
    };
    let files = || rig.files.clone();
    let nowhere = rig.folder.0.join("nowhere");
    let error = refused(TlsFiles { certificate: nowhere.clone(), ..files() });
    assert!(matches!(error, ServerError::Tls(TlsError::Read { path, .. }) if path == nowhere));
    let error = refused(TlsFiles { client_ca: files().key, ..files() });
    assert!(matches!(error, ServerError::Tls(TlsError::NoCertificate(_))), "{error}");
    let error = refused(TlsFiles { key: files().certificate, ..files() });
    assert!(matches!(error, ServerError::Tls(TlsError::Pem { .. })), "{error}");
    let foreign = rig.folder.0.join("foreign.key");
    fs::write(&foreign, Identity::of("x", &rig.servers, false).key).unwrap();
    fs::set_permissions(&foreign, Permissions::from_mode(0o640)).unwrap();
    let error = refused(TlsFiles { key: foreign.clone(), ..files() });
    assert!(matches!(error, ServerError::Tls(TlsError::Exposed(_))), "{error}");
    fs::set_permissions(&foreign, Permissions::from_mode(0o400)).unwrap();
    let error = refused(TlsFiles { key: foreign, ..files() });
    assert!(matches!(error, ServerError::Tls(TlsError::Identity { .. })), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::start(&rig.desk, Some(&Remote { address, ..rig.remote() })).unwrap_err();
    assert!(matches!(error, ServerError::Listen { address: at, .. } if at == address));
}
