//! Connects to the orchestrator of a cluster, and calls it.
//!
//! ```text
//!   call ──answered──> answer, or a refusal
//!     ^ └─UNAVAILABLE: nobody leads just now, or nobody is there─> a pause, longer each time ─┐
//!     └───────────────────────── up to LIMIT <─────────────────────────────────────────────────┘
//! ```
//! What changes something has a request id, so that it is done once however often it is asked.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{Operation, WaitOperationRequest};
use hyper_util::rt::TokioIo;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::read;
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;
use tower::service_fn;

/// For a call and all its tries.
const LIMIT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// One call that waits for an operation.
const WAIT: Duration = Duration::from_secs(15);

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Where {
    /// Where the orchestrator of the cluster listens: HOST:PORT for TLS, or unix:PATH
    #[arg(long, value_name = "ADDRESS", env = "TESSERA_CLUSTER")]
    cluster: String,
    /// Certificates of the authorities of the orchestrator, in PEM
    #[arg(long, value_name = "FILE", env = "TESSERA_CLUSTER_CA")]
    cluster_ca: Option<PathBuf>,
    /// Certificate by which the orchestrator knows who calls, in PEM
    #[arg(long, value_name = "FILE", env = "TESSERA_CLUSTER_CERTIFICATE")]
    cluster_certificate: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TESSERA_CLUSTER_KEY")]
    cluster_key: Option<PathBuf>,
}

/// How long something is waited for.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Wait for so long at most; it goes on nevertheless
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout: u64,
}

/// A cluster, and a thread of this program on which it is asked.
pub(crate) struct Cluster {
    runtime: Runtime,
    channel: Channel,
    /// As it was given.
    address: String,
}

impl Where {
    fn endpoint(&self) -> Result<Channel> {
        if let Some(path) = self.cluster.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let connect = service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            // The name is needed for the form of HTTP only.
            return Ok(Endpoint::from_static("http://cluster").connect_with_connector_lazy(connect));
        }
        let files = (&self.cluster_ca, &self.cluster_certificate, &self.cluster_key);
        let (Some(ca), Some(certificate), Some(key)) = files else {
            bail!(
                "{} is called over TLS: give --cluster-ca, --cluster-certificate and --cluster-key too, or unix:PATH",
                self.cluster
            );
        };
        let pem = |path: &PathBuf| read(path).with_context(|| format!("read {}", path.display()));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(pem(ca)?))
            .identity(Identity::from_pem(pem(certificate)?, pem(key)?));
        let bare = self.cluster.strip_prefix("https://").unwrap_or(&self.cluster);
        let endpoint = Endpoint::from_shared(format!("https://{bare}"));
        let endpoint = endpoint.with_context(|| format!("{:?} is no HOST:PORT", self.cluster))?;
        let endpoint = endpoint.tls_config(tls).context("use the certificates")?;
        Ok(endpoint.connect_timeout(Duration::from_secs(5)).connect_lazy())
    }

    /// Prepares to ask. It connects with the first call.
    pub(crate) fn connect(&self) -> Result<Cluster> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("prepare to ask")?;
        let channel = {
            let _here = runtime.enter();
            self.endpoint()?
        };
        Ok(Cluster { runtime, channel, address: self.cluster.clone() })
    }
}

/// An id for something that is to be done once.
pub(crate) fn request_id() -> Result<String> {
    let mut bytes = [0_u8; 16];
    let got = getrandom(&mut bytes, GetRandomFlags::empty()).context("make a request id")?;
    if got != bytes.len() {
        bail!("the kernel gives too few random bytes");
    }
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let at = |from, to| &digits[from..to];
    Ok([at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)].join("-"))
}

/// The reason of an error, if the cluster has given one.
pub(crate) fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|it| it.reason.clone()).unwrap_or_default()
}

fn refused(address: &str, status: &Status) -> anyhow::Error {
    let leader =
        status.get_error_details().error_info().and_then(|it| it.metadata.get("leader").cloned());
    let leader = leader.map_or_else(String::new, |it| format!("; {it} leads"));
    match (status.code(), reason(status)) {
        (Code::Unavailable, reason) if reason.is_empty() => {
            anyhow!(
                "nobody answers at {address}: {}; is the orchestrator there (tessera orchestrator), and is --cluster right?",
                status.message()
            )
        }
        (_, reason) if reason.is_empty() => anyhow!("the cluster fails: {}", status.message()),
        (_, reason) => anyhow!("the cluster refuses: {} ({reason}{leader})", status.message()),
    }
}

impl Cluster {
    /// Asks, again while nobody leads; the refusal is the caller's to judge.
    pub(crate) fn try_ask<R: Clone, A, F>(
        &self,
        request: &R,
        ask: impl Fn(Channel, R) -> F,
    ) -> Result<std::result::Result<A, Status>>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let tries = async {
            let (mut pause, end) = (FIRST_PAUSE, Instant::now() + LIMIT / 2);
            loop {
                match ask(self.channel.clone(), request.clone()).await {
                    Err(status) if status.code() == Code::Unavailable && Instant::now() < end => {
                        if pause == FIRST_PAUSE {
                            let seconds = (LIMIT / 2).as_secs();
                            eprintln!(
                                "waiting for the cluster at {}, {seconds} s at most",
                                self.address
                            );
                        }
                        sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                    ended => return ended.map(Response::into_inner),
                }
            }
        };
        let ended = self.runtime.block_on(async { timeout(LIMIT, tries).await });
        ended.map_err(|_| anyhow!("the cluster does not answer within {LIMIT:?}"))
    }

    /// Asks, again while nobody leads.
    pub(crate) fn ask<R: Clone, A, F>(
        &self,
        request: &R,
        ask: impl Fn(Channel, R) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.try_ask(request, ask)?.map_err(|status| self.refused(&status))
    }

    /// What a user is told of a refusal.
    pub(crate) fn refused(&self, status: &Status) -> anyhow::Error {
        refused(&self.address, status)
    }

    /// All entries of a list, which comes in pages: `page` has the one that a token is of, with the next token.
    pub(crate) fn all<T>(page: impl Fn(String) -> Result<(Vec<T>, String)>) -> Result<Vec<T>> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let (entries, next) = page(token)?;
            all.extend(entries);
            if next.is_empty() {
                return Ok(all);
            }
            token = next;
        }
    }

    /// Waits for an operation. None if it goes on when patience is over; `look` sees how it stands.
    pub(crate) fn wait(
        &self,
        name: &str,
        patience: Patience,
        mut look: impl FnMut(&Operation),
    ) -> Result<Option<Operation>> {
        let end = Instant::now() + Duration::from_secs(patience.timeout);
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(WAIT);
            let seconds = i64::try_from(left.as_secs())?;
            let nanos = i32::try_from(left.subsec_nanos())?;
            let request = WaitOperationRequest {
                name: name.to_owned(),
                timeout: Some(prost_types::Duration { seconds, nanos }),
            };
            let operation = self.ask(&request, |channel, request| async move {
                OperationsClient::new(channel).wait_operation(request).await
            })?;
            look(&operation);
            if operation.done {
                return Ok(Some(operation));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Waits until it is done well.
    pub(crate) fn wait_for(&self, operation: &Operation, patience: Patience) -> Result<Operation> {
        let done = self.wait(&operation.name, patience, |_| {})?;
        let seconds = patience.timeout;
        let done =
            done.with_context(|| format!("it is not done after {seconds} s, and goes on"))?;
        match &done.result {
            Some(Outcome::Error(error)) => bail!("it has failed: {}", error.message),
            _ => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_and_differ() {
        let (one, other) = (request_id().unwrap(), request_id().unwrap());
        assert!(one != other && one.len() == 36, "{one} {other}");
        assert!(one.split('-').map(str::len).eq([8, 4, 4, 4, 12]), "{one}");
    }

    #[test]
    fn who_finds_nobody_is_told_where_and_what_to_look_at() {
        let error = refused("unix:/run/c.sock", &Status::unavailable("No such file or directory"));
        let error = error.to_string();
        assert!(error.starts_with("nobody answers at unix:/run/c.sock: No such file"), "{error}");
        assert!(error.contains("--cluster"), "{error}");
    }
}
