//! How one orchestrator is reached, and which failures do not mend themselves.

use anyhow::{Context, Result, bail, ensure};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fs::read;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tower::service_fn;
use vm_service::certificate_file;

/// For TCP and TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Files of whoever calls.
pub(super) struct Files<'a> {
    pub(super) ca: &'a Path,
    pub(super) certificate: &'a Path,
    pub(super) key: &'a Path,
}

impl Files<'_> {
    pub(super) fn tls(&self) -> Result<ClientTlsConfig> {
        let key = read(self.key).with_context(|| format!("read {}", self.key.display()))?;
        let identity = Identity::from_pem(certificate_file(self.certificate)?, key);
        let authorities = Certificate::from_pem(certificate_file(self.ca)?);
        Ok(ClientTlsConfig::new().ca_certificate(authorities).identity(identity))
    }
}

/// The path of a socket, if it is one.
pub(super) fn path(address: &str) -> Option<PathBuf> {
    address.strip_prefix("unix:").map(PathBuf::from)
}

/// Prepares to call it. It connects with the first call.
///
/// # Errors
/// What is no address.
pub(super) fn channel(address: &str, tls: Option<&ClientTlsConfig>) -> Result<Channel> {
    if let Some(path) = path(address) {
        let connect = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The name is needed for the form of HTTP only.
        return Ok(Endpoint::from_static("http://cluster").connect_with_connector_lazy(connect));
    }
    ensure!(!address.is_empty(), "an address of --cluster is empty (TESSERA_CLUSTER)");
    if address.starts_with('/') || address.starts_with('.') {
        bail!("{address} is no HOST:PORT; a socket is written unix:{address}");
    }
    let Some(tls) = tls else {
        bail!(
            "{address} is called over TLS: give --cluster-ca, --cluster-certificate and --cluster-key too, or unix:PATH"
        );
    };
    let bare = address.strip_prefix("https://").unwrap_or(address);
    let port = bare.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    ensure!(port.is_some(), "{address} is no HOST:PORT");
    let endpoint = Endpoint::from_shared(format!("https://{bare}"));
    let endpoint = endpoint.with_context(|| format!("{address} is no HOST:PORT"))?;
    let endpoint = endpoint.tls_config(tls.clone()).context("use the certificates")?;
    Ok(endpoint.connect_timeout(CONNECT_LIMIT).connect_lazy())
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let mut next = status.source();
    std::iter::from_fn(move || {
        let this = next?;
        // What wraps an error of the system does not always call it its source.
        let io = this.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = io.map(|inner| inner as &(dyn Error + 'static)).or_else(|| this.source());
        Some(this)
    })
}

/// What has failed, from the outside to the inside, each cause once.
pub(super) fn words(status: &Status) -> String {
    let mut all: Vec<String> = vec![status.message().to_owned()];
    for cause in causes(status).map(ToString::to_string) {
        if !all.iter().any(|known| known.contains(&cause)) {
            all.push(cause);
        }
    }
    all.join(": ")
}

/// Why it is no use to ask again; none if it may be.
pub(super) fn why_final(status: &Status) -> Option<&'static str> {
    if status.code() != Code::Unavailable {
        return None;
    }
    let kind = causes(status).find_map(|it| it.downcast_ref::<io::Error>().map(io::Error::kind))?;
    match kind {
        io::ErrorKind::PermissionDenied => {
            Some("only root and the user that runs the orchestrator may call it there")
        }
        io::ErrorKind::InvalidData => Some(
            "somebody listens there, but its certificate is not accepted: is it the orchestrator, and are the name and --cluster-ca right?",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused_with_what_it_should_be() {
        let told = |address| format!("{:#}", channel(address, None).unwrap_err());
        assert!(told("").contains("empty"));
        assert!(told("/run/x.sock").contains("unix:/run/x.sock"));
        assert!(told("host:7300").contains("--cluster-ca"));
        let tls = ClientTlsConfig::new();
        for address in ["127.0.0.1", "host:", "host:x", "host:70000"] {
            let told = format!("{:#}", channel(address, Some(&tls)).unwrap_err());
            assert!(told.contains("is no HOST:PORT"), "{told}");
        }
    }

    #[test]
    fn file_without_a_certificate_is_named() {
        let folder = std::env::temp_dir().join(format!("tessera-ca-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("ca.pem");
        std::fs::write(&path, "hello").unwrap();
        let files = Files { ca: &path, certificate: &path, key: &path };
        let told = format!("{:#}", files.tls().unwrap_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(told.contains("ca.pem has no certificate in PEM"), "{told}");
    }

    #[test]
    fn what_does_not_mend_itself_is_told_from_what_may() {
        let of = |kind| {
            let mut status = Status::unavailable("transport error");
            status.set_source(std::sync::Arc::new(io::Error::new(kind, "the cause")));
            status
        };
        assert!(why_final(&of(io::ErrorKind::PermissionDenied)).is_some());
        assert!(why_final(&of(io::ErrorKind::InvalidData)).is_some());
        assert!(why_final(&of(io::ErrorKind::ConnectionRefused)).is_none());
        assert!(why_final(&Status::unavailable("nobody leads")).is_none());
        assert_eq!(words(&of(io::ErrorKind::NotFound)), "transport error: the cause");
    }
}
