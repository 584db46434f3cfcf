//! Where etcd is, and below which keys the store is.

use std::time::Duration;

use thiserror::Error;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::key::{Key, KeyError};

/// Endpoints of one cluster; more than it has members help nobody.
const ENDPOINTS_MAX: usize = 16;

/// Certificates, all in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// Who has signed etcd's certificate.
    pub ca: Vec<u8>,
    /// Certificate and key of this client, if etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that is in etcd's certificate, if it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for EtcdTls {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Where etcd is, and how it is used.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT` of members of one cluster.
    pub endpoints: Vec<String>,
    /// Everything is below this: one etcd may have several stores.
    pub root: String,
    /// Needed where an endpoint begins with `https`.
    pub tls: Option<EtcdTls>,
    /// A call takes no longer, with all its attempts.
    pub timeout: Duration,
    /// A watcher that etcd does not reach for so long is told.
    pub outage_max: Duration,
    /// Commits that wait for a watcher.
    pub queue_max: usize,
}

impl EtcdOptions {
    /// With what suits most.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            root: "tessera".to_owned(),
            tls: None,
            timeout: Duration::from_secs(5),
            outage_max: Duration::from_secs(30),
            queue_max: 1024,
        }
    }
}

/// Why etcd is not even asked.
#[derive(Debug, Error)]
pub enum EtcdOptionsError {
    /// At least one, and at most as many as this.
    #[error("{0} endpoints of etcd; 1 to {ENDPOINTS_MAX} are allowed")]
    Endpoints(usize),
    /// It is no address.
    #[error("{0:?} is no endpoint of etcd: http:// or https://, a host and a port")]
    Endpoint(String),
    /// An address with `https` and no certificates, or the reverse.
    #[error("{0}: certificates are needed for https, and only there")]
    Tls(String),
    /// They are not what they should be.
    #[error("certificates for etcd: {0}")]
    Certificates(String),
    /// It is no key.
    #[error("the root of the store in etcd: {0}")]
    Root(#[from] KeyError),
    /// No watcher could hear of anything.
    #[error("a watcher needs room for at least one commit")]
    Queue,
}

/// Those of the options, checked.
pub(super) fn endpoints(options: &EtcdOptions) -> Result<Vec<Endpoint>, EtcdOptionsError> {
    let count = options.endpoints.len();
    if count == 0 || count > ENDPOINTS_MAX {
        return Err(EtcdOptionsError::Endpoints(count));
    }
    if options.queue_max == 0 {
        return Err(EtcdOptionsError::Queue);
    }
    options.endpoints.iter().map(|address| endpoint(address, options)).collect()
}

fn endpoint(address: &str, options: &EtcdOptions) -> Result<Endpoint, EtcdOptionsError> {
    let wrong = || EtcdOptionsError::Endpoint(address.to_owned());
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| wrong())?;
    let uri = endpoint.uri();
    let encrypted = uri.scheme_str() == Some("https");
    if uri.host().is_none_or(str::is_empty)
        || uri.port().is_none()
        || !(encrypted || uri.scheme_str() == Some("http"))
    {
        return Err(wrong());
    }
    let endpoint = endpoint
        .connect_timeout(options.timeout / 2)
        // etcd refuses more than one in 5 s.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    match (&options.tls, encrypted) {
        (None, false) => Ok(endpoint),
        (Some(tls), true) => endpoint
            .tls_config(client_config(tls))
            .map_err(|error| EtcdOptionsError::Certificates(error.to_string())),
        _ => Err(EtcdOptionsError::Tls(address.to_owned())),
    }
}

fn client_config(tls: &EtcdTls) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    config
}

/// How keys of a store are called in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// What objects are below.
    objects: String,
    leader: String,
}

impl Names {
    pub(super) fn new(root: &str) -> Result<Self, KeyError> {
        let root = Key::new(root)?;
        Ok(Self { objects: format!("{root}/objects/"), leader: format!("{root}/leader") })
    }

    /// The key that whoever leads has.
    pub(super) fn leader(&self) -> Vec<u8> {
        self.leader.clone().into_bytes()
    }

    /// Of an object, or of what some begin with.
    pub(super) fn object(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.objects).into_bytes()
    }

    /// The first one after all that begin so. The last byte is a slash, so there is one.
    pub(super) fn end(&self, prefix: &str) -> Vec<u8> {
        let mut end = self.object(prefix);
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }

    /// The object that a key of etcd is of.
    pub(super) fn parse(&self, name: &[u8]) -> Result<Key, String> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let text = std::str::from_utf8(name).map_err(|_| shown())?;
        let object = text.strip_prefix(&self.objects).ok_or_else(shown)?;
        Key::new(object).map_err(|error| format!("{}: {error}", shown()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut EtcdOptions)) -> String {
        let mut options = EtcdOptions::new(vec!["http://127.0.0.1:2379".to_owned()]);
        change(&mut options);
        endpoints(&options).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn options_are_checked() {
        assert!(refused(|options| options.endpoints.clear()).starts_with("0 endpoints"));
        let many = |options: &mut EtcdOptions| {
            options.endpoints = vec![options.endpoints[0].clone(); ENDPOINTS_MAX + 1];
        };
        assert!(refused(many).starts_with("17 endpoints"));
        for wrong in ["127.0.0.1:2379", "http://h", "ftp://h:1", "", "http://:1", "http://a b:1"] {
            let error = refused(|options| options.endpoints = vec![wrong.to_owned()]);
            assert!(error.contains("is no endpoint"), "{wrong}: {error}");
        }
        let https = |options: &mut EtcdOptions| options.endpoints = vec!["https://h:1".to_owned()];
        assert!(refused(https).contains("certificates are needed"));
        let tls = EtcdTls { ca: b"no".to_vec(), identity: None, server_name: None };
        assert!(refused(|options| options.tls = Some(tls.clone())).contains("certificates"));
        let both = |options: &mut EtcdOptions| {
            https(options);
            options.tls = Some(EtcdTls { ca: b"no".to_vec(), identity: None, server_name: None });
        };
        let _ = endpoints(&{
            let mut options = EtcdOptions::new(vec![]);
            both(&mut options);
            options
        });
        assert!(refused(|options| options.queue_max = 0).contains("at least one"));
    }

    #[test]
    fn names_lead_back_to_keys() {
        let names = Names::new("tessera/one").unwrap();
        let key = Key::new("vms/a").unwrap();
        let name = names.object(key.as_str());
        assert_eq!(name, b"tessera/one/objects/vms/a");
        assert_eq!(names.parse(&name), Ok(key));
        assert_eq!(names.end("vms/"), b"tessera/one/objects/vms0");
        assert_eq!(names.end(""), b"tessera/one/objects0");
        assert!(names.parse(b"tessera/one/leader").is_err());
        assert!(names.parse(b"tessera/one/objects/a//b").is_err());
        assert!(names.parse(&[255]).is_err());
        assert!(Names::new("/x").is_err());
    }

    #[test]
    fn key_is_not_shown() {
        let identity = Some((b"certificate".to_vec(), b"secret".to_vec()));
        let tls = EtcdTls { ca: vec![], identity, server_name: None };
        assert!(!format!("{tls:?}").contains("secret"));
        assert!(!format!("{tls:?}").contains("115, 101"));
    }
}
