//! What the host and its slices are seen by from outside.
//!
//! ```text
//!   journal --> slices that run --SLICES_AT_ONCE at a time--> GetVm, GetDsmReport --in SLICE_LIMIT--> Seen --page (pure)--> rows
//!                                   \--no answer--> Seen without: tessera_slice_up is 0
//! ```
//! Nothing is remembered: a slice that is forgotten has no rows. There are as many of them as the journal has slices, and vCPUs here.

mod page;

use crate::forward::Slices;
use crate::shape::Fixed;
use ::metrics::{Page, Source};
use agent::decide::{Journal, Phase, Slice, SliceName};
use agent::runtime::{AgentHandle, now};
use control::v1::vm_service_client::VmServiceClient;
use control::v1::{DsmReport, GetDsmReportRequest, GetVmRequest, Vm};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

/// Slices that are asked at a time.
const SLICES_AT_ONCE: usize = 16;
/// For the answers of one slice.
const SLICE_LIMIT: Duration = Duration::from_secs(3);
/// For those of all: a collector waits ten seconds, unless it is told otherwise.
const ALL_LIMIT: Duration = Duration::from_secs(8);

/// A slice of the journal, and what it has said.
#[derive(Debug)]
struct Seen {
    name: SliceName,
    slice: Slice,
    said: Option<Said>,
}

/// What a slice says.
#[derive(Debug)]
struct Said {
    vm: Vm,
    /// None of a slice without a memory engine.
    report: Option<DsmReport>,
}

/// All that a page is made of.
#[derive(Debug)]
struct Look {
    fixed: Arc<Fixed>,
    journal: Arc<Journal>,
    now: u64,
    seen: Vec<Seen>,
}

/// Looks when it is asked.
#[derive(Debug)]
pub(crate) struct HostMetrics {
    pub(crate) agent: AgentHandle,
    pub(crate) fixed: Arc<Fixed>,
    pub(crate) slices: Slices,
}

impl Source for HostMetrics {
    fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
        Box::pin(async { page::page(&self.look().await) })
    }
}

impl HostMetrics {
    async fn look(&self) -> Look {
        let journal = self.agent.journal();
        let end = Instant::now() + ALL_LIMIT;
        let places = Arc::new(Semaphore::new(SLICES_AT_ONCE));
        let mut asking = JoinSet::new();
        let mut seen: Vec<Seen> = Vec::with_capacity(journal.slices.len());
        for (name, slice) in &journal.slices {
            if matches!(slice.phase, Phase::Running(_)) {
                let (slices, places, name) = (self.slices.clone(), Arc::clone(&places), *name);
                asking.spawn(async move {
                    let _place = places.acquire_owned().await.ok()?;
                    let said = timeout(SLICE_LIMIT, ask(&slices, name)).await.ok()?.ok()?;
                    Some((name, said))
                });
            }
            seen.push(Seen { name: *name, slice: slice.clone(), said: None });
        }
        // Whoever has not answered by then is given up with the set.
        while let Ok(Some(answer)) = timeout_at(end, asking.join_next()).await {
            let Some((name, said)) = answer.ok().flatten() else { continue };
            // They are in the order of the journal.
            if let Ok(at) = seen.binary_search_by_key(&name, |it| it.name) {
                seen[at].said = Some(said);
            }
        }
        Look { fixed: Arc::clone(&self.fixed), journal, now: now(), seen }
    }
}

async fn ask(slices: &Slices, name: SliceName) -> Result<Said, Status> {
    let (key, channel) = slices.channel(name).await?;
    let mut client = VmServiceClient::new(channel);
    let vm = client.get_vm(GetVmRequest::default()).await;
    let vm = vm.inspect_err(|_| slices.forget(&key))?.into_inner();
    let report = client.get_dsm_report(GetDsmReportRequest::default()).await;
    Ok(Said { vm, report: report.ok().map(tonic::Response::into_inner) })
}
