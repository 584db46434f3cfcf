//! Where a slice serves its API, and who may call: on its control socket its own user, over TCP whoever has a certificate.

use crate::names::address;
use anyhow::{Context, Result};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use vm_service::{Remote, Server, TlsFiles};
use vmm::slice::LocalOptions;

#[derive(Args, Clone, Debug)]
pub(crate) struct Api {
    /// Serve the gRPC API of this slice there too, over TLS 1.3 with certificates of both ends (docs/api.md)
    ///
    /// On the control socket (--control) it is served without. The four options of the API are given together.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = address,
        requires_all = ["api_certificate", "api_key", "api_client_ca"]
    )]
    api: Option<SocketAddr>,
    /// Certificate of this slice for its API, in PEM, with those between it and its authority
    #[arg(long, value_name = "FILE", requires = "api")]
    api_certificate: Option<PathBuf>,
    /// Private key of that certificate, in PEM; readable by its owner only
    #[arg(long, value_name = "FILE", requires = "api")]
    api_key: Option<PathBuf>,
    /// Certificates of the authorities whose clients may call, in PEM
    #[arg(long, value_name = "FILE", requires = "api")]
    api_client_ca: Option<PathBuf>,
}

impl Api {
    fn remote(&self) -> Option<Remote> {
        let files = TlsFiles {
            certificate: self.api_certificate.clone()?,
            key: self.api_key.clone()?,
            client_ca: self.api_client_ca.clone()?,
        };
        Some(Remote { address: self.api?, files })
    }

    /// Serves the API of the slice that is asked at the desk of these options, as long as what is returned lives.
    pub(crate) fn serve(&self, options: &LocalOptions) -> Result<Option<Server>> {
        let remote = self.remote();
        if remote.is_none() && options.control.is_none() {
            return Ok(None);
        }
        let server = Server::start(&options.desk, remote.as_ref()).context("serve the API")?;
        if let Some(address) = server.address() {
            tracing::info!("the API is served at {address}");
        }
        Ok(Some(server))
    }
}
