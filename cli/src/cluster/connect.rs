//! Connects to the orchestrator of a cluster, and calls it.
//!
//! ```text
//!   call ──answered──> answer, or a refusal
//!    ^ ^ └─UNAVAILABLE ─ somebody else leads, who is named ─────────> that one
//!    │ │               └ nobody leads, or nobody is there ──────────> the next one that was given
//!    │ └───────────── that was not asked since the last pause <──────┘   │ all were
//!    └──────── a pause, longer each time, up to LIMIT <──────────────────┘
//! ```
//! A call that ends with its connection goes the way of one that nobody answers, CUT_OFF_MAX times: whoever was asked may have died,
//! or does not accept the certificate of who calls, and TLS 1.3 has no other word for that.
//! If nothing of that mends itself (no permission, a certificate of the cluster that is not accepted) it is told at once.
//!
//! What changes VMs has a request id, so that it is done once however often it is asked. What is asked of hosts may be done twice.

use super::endpoint::{self, Files, why_final, words};
use super::output::remark;
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, value_parser};
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{Operation, WaitOperationRequest};
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, ClientTlsConfig};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

/// For a call and all its tries.
const LIMIT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Calls that end with their connection, before that is told.
const CUT_OFF_MAX: u32 = 5;
/// For one of them. It is longer than a call that waits for an operation.
const TRY: Duration = Duration::from_secs(10);
/// One call that waits for an operation: who waits looks between two.
const WAIT: Duration = Duration::from_secs(5);

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Where {
    /// Where the orchestrators of the cluster listen: HOST:PORT for TLS, or unix:PATH. Several are separated by commas: whoever
    /// leads is found
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TESSERA_CLUSTER",
        value_delimiter = ',',
        required = true
    )]
    cluster: Vec<String>,
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

/// The longest time that something is waited for, in seconds.
const YEAR: u64 = 366 * 24 * 3600;

/// How long something is waited for.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Wait for so long at most; it goes on nevertheless
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(..=YEAR))]
    pub(crate) timeout: u64,
}

/// One that may lead.
struct Peer {
    address: String,
    channel: Channel,
}

/// Those that may lead, and whom to ask.
struct Peers {
    all: Vec<Peer>,
    /// Who is asked, or was asked last.
    at: usize,
    /// So many were given; the others were named by these.
    given: usize,
    /// Those that were asked since it was waited last.
    asked: BTreeSet<usize>,
    /// One of these may do better soon.
    is_hopeful: bool,
}

impl Peers {
    /// After the one that was asked has not answered, or does not lead: the one that it has named, or the next one that was given, and
    /// none twice. False if there is none: now it is waited.
    fn turn(&mut self, named: Option<usize>) -> bool {
        self.asked.insert(self.at);
        let given = (1..=self.given).map(|more| (self.at + more) % self.given);
        let next = named.into_iter().chain(given).find(|peer| !self.asked.contains(peer));
        self.at = next.unwrap_or(self.at);
        next.is_some()
    }

    /// It was waited. Whoever was named last is asked first, else the next one.
    fn begin_again(&mut self, named: Option<usize>) {
        self.asked.clear();
        self.is_hopeful = false;
        self.at = named.unwrap_or((self.at + 1) % self.given);
    }
}

/// A cluster, and a thread of this program on which it is asked.
pub(crate) struct Cluster {
    runtime: Runtime,
    tls: Option<ClientTlsConfig>,
    peers: RefCell<Peers>,
}

impl Where {
    fn tls(&self) -> Result<Option<ClientTlsConfig>> {
        let (Some(ca), Some(certificate), Some(key)) =
            (&self.cluster_ca, &self.cluster_certificate, &self.cluster_key)
        else {
            return Ok(None);
        };
        Files { ca, certificate, key }.tls().map(Some)
    }

    /// Prepares to ask. It connects with the first call.
    pub(crate) fn connect(&self) -> Result<Cluster> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("prepare to ask")?;
        let tls = self.tls()?;
        let all = {
            let _here = runtime.enter();
            let peer = |address: &String| {
                let channel = endpoint::channel(address, tls.as_ref())?;
                Ok(Peer { address: address.clone(), channel })
            };
            self.cluster.iter().map(peer).collect::<Result<Vec<_>>>()?
        };
        let given = all.len();
        if given == 0 {
            bail!("--cluster is empty (TESSERA_CLUSTER)");
        }
        let peers = Peers { all, at: 0, given, asked: BTreeSet::new(), is_hopeful: false };
        Ok(Cluster { runtime, tls, peers: RefCell::new(peers) })
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

/// The connection has ended in the middle of a call.
fn is_cut_off(status: &Status) -> bool {
    let codes = [Code::Unknown, Code::Cancelled, Code::Internal];
    codes.contains(&status.code()) && reason(status).is_empty()
}

/// Who leads, as one that does not has said.
fn leader(status: &Status) -> Option<String> {
    status.get_error_details().error_info().and_then(|it| it.metadata.get("leader").cloned())
}

fn refused(address: &str, status: &Status) -> anyhow::Error {
    let leader = leader(status).map_or_else(String::new, |it| format!("; {it} leads"));
    let reason = reason(status);
    match status.code() {
        Code::Unavailable if reason.is_empty() => {
            let advice = why_final(status).unwrap_or(
                "is the orchestrator there (tessera orchestrator), and is --cluster right?",
            );
            anyhow!("nobody answers at {address}: {}; {advice}", words(status))
        }
        Code::Unavailable if reason == "NOT_LEADER" && leader.is_empty() => {
            anyhow!(
                "nobody leads, as {address} says (NOT_LEADER): does the store answer? Its log says more"
            )
        }
        _ if is_cut_off(status) && !address.starts_with("unix:") => {
            anyhow!(
                "{address} has hung up: {}; is --cluster-certificate of an authority in its --client-ca, and still valid?",
                words(status)
            )
        }
        _ if reason.is_empty() => anyhow!("the cluster fails: {}", status.message()),
        _ => anyhow!("the cluster refuses: {} ({reason}{leader})", status.message()),
    }
}

impl Cluster {
    fn addresses(&self) -> String {
        let peers = self.peers.borrow();
        let given = peers.all.iter().take(peers.given).map(|peer| peer.address.as_str());
        given.collect::<Vec<_>>().join(", ")
    }

    fn peer(&self) -> (String, Channel) {
        let peers = self.peers.borrow();
        let Peer { address, channel } = &peers.all[peers.at];
        (address.clone(), channel.clone())
    }

    /// The one that is said to lead, if it can be called from here.
    fn named(&self, leader: &str) -> Option<usize> {
        let mut peers = self.peers.borrow_mut();
        let bare = |address: &str| address.trim_start_matches("https://").to_owned();
        let known = peers.all.iter().position(|peer| bare(&peer.address) == bare(leader));
        if known.is_some() {
            return known;
        }
        if endpoint::path(leader).is_some_and(|path| !path.exists()) {
            return None;
        }
        let channel = endpoint::channel(leader, self.tls.as_ref()).ok()?;
        peers.all.push(Peer { address: leader.to_owned(), channel });
        Some(peers.all.len() - 1)
    }

    /// Asks one after another, again while nobody leads; the refusal is the caller's to judge.
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
            let mut cut_off = 0;
            let at = self.peers.borrow().at;
            self.peers.borrow_mut().begin_again(Some(at));
            loop {
                let asked = timeout(TRY, ask(self.peer().1, request.clone())).await;
                let silent = || Err(Status::unavailable(format!("no answer within {TRY:?}")));
                let status = match asked.unwrap_or_else(|_| silent()) {
                    Err(status) if status.code() == Code::Unavailable => status,
                    // Whoever was asked may have died just then. One that hangs up each time does not want to be asked.
                    Err(status) if is_cut_off(&status) && cut_off < CUT_OFF_MAX => {
                        cut_off += 1;
                        status
                    }
                    ended => return ended.map(Response::into_inner),
                };
                let named = leader(&status).and_then(|leader| self.named(&leader));
                self.peers.borrow_mut().is_hopeful |= why_final(&status).is_none();
                if Instant::now() >= end {
                    return Err(status);
                }
                if self.peers.borrow_mut().turn(named) {
                    continue;
                }
                if !self.peers.borrow().is_hopeful {
                    return Err(status);
                }
                if pause == FIRST_PAUSE {
                    let (seconds, addresses) = ((LIMIT / 2).as_secs(), self.addresses());
                    remark(&format!("waiting for the cluster at {addresses}, {seconds} s at most"));
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                self.peers.borrow_mut().begin_again(named);
            }
        };
        let ended = self.runtime.block_on(async { timeout(LIMIT, tries).await });
        let silent = || anyhow!("{} do not answer within {LIMIT:?}", self.addresses());
        ended.map_err(|_| silent())
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

    /// Waits for what comes of a call; None if it takes longer.
    pub(crate) fn within<F: Future>(&self, limit: Duration, what: F) -> Option<F::Output> {
        self.runtime.block_on(async { timeout(limit, what).await.ok() })
    }

    /// What a user is told of a refusal.
    pub(crate) fn refused(&self, status: &Status) -> anyhow::Error {
        refused(&self.peer().0, status)
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
    pub(crate) fn wait_for(
        &self,
        operation: &Operation,
        patience: Patience,
        look: impl FnMut(&Operation),
    ) -> Result<Operation> {
        let done = self.wait(&operation.name, patience, look)?;
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

    fn places(addresses: &[&str]) -> Where {
        let cluster = addresses.iter().map(|it| (*it).to_owned()).collect();
        Where { cluster, cluster_ca: None, cluster_certificate: None, cluster_key: None }
    }

    /// Who was asked, one after another, where `leader` is what each of them says; the last one that is asked leads.
    fn asked(cluster: &Cluster, leaders: &[Option<&str>]) -> Vec<usize> {
        let asked = RefCell::new(Vec::new());
        let answer = cluster.try_ask(&(), |_, ()| {
            asked.borrow_mut().push(cluster.peers.borrow().at);
            let says = leaders.get(asked.borrow().len() - 1).copied();
            async move {
                let Some(leader) = says else { return Ok(Response::new(())) };
                let metadata = leader.map(|it| ("leader".to_owned(), it.to_owned()));
                let info = tonic_types::ErrorDetails::with_error_info(
                    "NOT_LEADER",
                    "tessera",
                    metadata.into_iter().collect::<std::collections::HashMap<_, _>>(),
                );
                Err(Status::with_error_details(Code::Unavailable, "another one leads", info))
            }
        });
        answer.unwrap().unwrap();
        asked.into_inner()
    }

    #[test]
    fn who_is_named_is_asked_next_and_else_one_after_another() {
        let cluster = places(&["unix:/a", "unix:/b", "unix:/c"]).connect().unwrap();
        assert_eq!(asked(&cluster, &[]), [0]);
        assert_eq!(asked(&cluster, &[Some("unix:/c")]), [0, 2]);
        // It is remembered.
        assert_eq!(asked(&cluster, &[]), [2]);
        assert_eq!(asked(&cluster, &[None, None]), [2, 0, 1]);
        // Whoever names one that is dead does not keep the others from being asked.
        let names_a = [None, Some("unix:/a"), None];
        assert_eq!(asked(&cluster, &names_a), [1, 2, 0, 1]);
    }

    /// Each is asked once before it is waited, whoever is named.
    #[test]
    fn those_that_name_each_other_are_not_asked_without_a_pause() {
        let cluster = places(&["unix:/a", "unix:/b", "unix:/c"]).connect().unwrap();
        for (at, named) in [(0, 1), (1, 0), (1, 2), (2, 2)] {
            let mut peers = cluster.peers.borrow_mut();
            peers.begin_again(Some(at));
            let mut asked = vec![at];
            while peers.turn(Some(named)) {
                asked.push(peers.at);
                assert!(asked.len() <= 3, "{at} {named}: {asked:?}");
            }
            assert_eq!(Some(&peers.at), asked.last(), "who is told of");
            peers.begin_again(Some(named));
            assert_eq!(peers.at, named, "first after the pause");
            asked.sort_unstable();
            assert_eq!(asked, [0, 1, 2], "{at} {named}");
        }
        let cluster = places(&["unix:/a", "unix:/b"]).connect().unwrap();
        let says = ["unix:/b", "unix:/a", "unix:/b", "unix:/a", "unix:/b"].map(Some);
        assert_eq!(asked(&cluster, &says).len(), 6);
        // A socket that is not here, and an address whose certificates were not given, are not followed.
        let cluster = places(&["unix:/a"]).connect().unwrap();
        assert_eq!(asked(&cluster, &[Some("unix:/nowhere/z"), Some("z:7300")]), [0, 0, 0]);
    }

    #[test]
    fn call_that_is_cut_off_is_made_again_and_not_for_ever() {
        let cluster = places(&["unix:/a"]).connect().unwrap();
        let cut_off = |times: u32| {
            let made = RefCell::new(0);
            let answer = cluster.try_ask(&(), |_, ()| {
                *made.borrow_mut() += 1;
                let is_cut_off = *made.borrow() <= times;
                async move {
                    if is_cut_off {
                        Err(Status::unknown("transport error"))
                    } else {
                        Ok(Response::new(()))
                    }
                }
            });
            (answer.unwrap().is_ok(), made.into_inner())
        };
        assert_eq!(cut_off(1), (true, 2));
        assert_eq!(cut_off(9), (false, CUT_OFF_MAX + 1));
    }

    #[test]
    fn who_finds_nobody_is_told_where_and_what_to_look_at() {
        let error = refused("unix:/run/c.sock", &Status::unavailable("No such file or directory"));
        let error = error.to_string();
        assert!(error.starts_with("nobody answers at unix:/run/c.sock: No such file"), "{error}");
        assert!(error.contains("--cluster"), "{error}");
    }
}
