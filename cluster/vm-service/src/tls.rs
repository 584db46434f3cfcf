//! TLS of the API over TCP: version 1.3 only, and both ends prove who they are.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Bytes of a file with certificates or a key, at most.
const FILE_MAX: u64 = 1 << 20;

/// The files, all in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// The certificate's private key. Only its owner may read it.
    pub key: PathBuf,
    /// The authority, or authorities, whose clients may call.
    pub client_ca: PathBuf,
}

/// Why there is no TLS.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Others may read the key.
    #[error("{} may be read by others than its owner: chmod 600", .0.display())]
    Exposed(PathBuf),
    /// Not PEM.
    #[error("read PEM in {}", .path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: PemError,
    },
    /// There is none in it.
    #[error("{} has no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// The certificate of an authority is none.
    #[error("take {} as an authority", .path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// Clients cannot be judged.
    #[error("prepare to judge certificates of clients")]
    Verifier(#[from] VerifierBuilderError),
    /// Certificate and key do not fit, or cannot be used.
    #[error("use the certificate in {} with the key in {}", .certificate.display(), .key.display())]
    Identity {
        /// The one file.
        certificate: PathBuf,
        /// The other.
        key: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The library lacks TLS 1.3.
    #[error("choose TLS 1.3")]
    Version(#[source] rustls::Error),
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn parsed(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let all = all.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    if all.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(all) }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    parsed(path, &read(path)?)
}

/// A file in PEM with at least one certificate, for whoever calls others.
///
/// # Errors
/// It cannot be read, or has none.
pub fn certificate_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let bytes = read(path)?;
    parsed(path, &bytes).map(|_| bytes)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = |source| TlsError::Pem { path: path.to_owned(), source };
    PrivateKeyDer::from_pem_slice(&key_file(path)?).map_err(pem)
}

/// A file that only its owner may read, with a private key.
///
/// # Errors
/// It cannot be read, or others may read it.
pub fn key_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(TlsError::Exposed(path.to_owned()));
    }
    read(path)
}

impl TlsFiles {
    /// What the server needs.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it is to be, or they do not fit.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.client_ca)? {
            let path = || self.client_ca.clone();
            let failed = |source| TlsError::Authority { path: path(), source };
            roots.add(authority).map_err(failed)?;
        }
        let provider = Arc::new(default_provider());
        let judge = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let (certificate, key) = (certificates(&self.certificate)?, key(&self.key)?);
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Version)?
            .with_client_cert_verifier(judge.build()?)
            .with_single_cert(certificate, key);
        let mut config = config.map_err(|source| TlsError::Identity {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}
