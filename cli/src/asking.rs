//! Asks a slice by its API, over its control socket, and waits for what takes long.

use anyhow::{Context, Result, anyhow, bail};
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{Operation, WaitOperationRequest};
use control::v1::OperationProgress;
use control::v1::vm_service_client::VmServiceClient;
use prost::Message;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tonic::{Code, Response, Status};
use vm_service::Channel;

/// The slice answers sooner, or not at all.
const LIMIT: Duration = Duration::from_secs(10);
/// The same when all slices of a VM must do something first.
pub(crate) const LIMIT_OF_ALL: Duration = Duration::from_secs(90);
/// The same for each part of something that takes long.
const LIMIT_OF_A_PART: Duration = Duration::from_secs(300);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A slice, and a thread of this program on which it is asked.
pub(crate) struct Asking {
    runtime: Runtime,
    channel: Channel,
}

/// The client of a slice's API.
pub(crate) type Vm = VmServiceClient<Channel>;

impl Asking {
    /// Connects.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("prepare to ask")?;
        let connected = runtime.block_on(async { timeout(LIMIT, vm_service::connect(path)).await });
        let channel = connected.map_err(|_| anyhow!("the slice does not answer"))??;
        Ok(Self { runtime, channel })
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask<A, F>(&self, ask: impl FnOnce(Vm) -> F) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        self.ask_within(LIMIT, ask)
    }

    /// The same of what takes longer.
    pub(crate) fn ask_within<A, F>(&self, limit: Duration, ask: impl FnOnce(Vm) -> F) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        // Counters of a VM with many devices and slices are no small message, and are from a slice of this user.
        let vm = Vm::new(self.channel.clone()).max_decoding_message_size(16 << 20);
        let answer = self.runtime.block_on(async { timeout(limit, ask(vm)).await });
        let answer = answer.map_err(|_| anyhow!("the slice does not answer within {limit:?}"))?;
        Ok(answer.map_err(|status| refused(&status))?.into_inner())
    }

    /// Begins an operation, and waits for its end; `progress` hears how far it has come.
    pub(crate) fn operate<A, F>(
        &self,
        begin: impl FnOnce(Vm) -> F,
        mut progress: impl FnMut(&OperationProgress),
    ) -> Result<A>
    where
        A: Message + Default,
        F: Future<Output = std::result::Result<Response<Operation>, Status>>,
    {
        let mut operation = self.ask(begin)?;
        let (mut far, mut since) = (OperationProgress::default(), Instant::now());
        loop {
            if let Some(metadata) = &operation.metadata {
                let now =
                    OperationProgress::decode(&metadata.value[..]).context("read the answer")?;
                progress(&now);
                if now != far {
                    (far, since) = (now, Instant::now());
                }
            }
            match operation.result {
                Some(Outcome::Response(response)) => {
                    return A::decode(&response.value[..]).context("read the answer");
                }
                Some(Outcome::Error(error)) => bail!("the slice refuses: {}", error.message),
                None if since.elapsed() > LIMIT_OF_A_PART => {
                    bail!("nothing has come of it for {LIMIT_OF_A_PART:?}; it goes on")
                }
                None => operation = self.wait(operation.name)?,
            }
        }
    }

    fn wait(&self, name: String) -> Result<Operation> {
        let mut operations = OperationsClient::new(self.channel.clone());
        let nanos = i32::try_from(LOOK_EVERY.subsec_nanos())?;
        let limit = Some(prost_types::Duration { seconds: 0, nanos });
        let request = WaitOperationRequest { name, timeout: limit };
        let waited = async { timeout(LIMIT, operations.wait_operation(request)).await };
        let operation = self.runtime.block_on(waited);
        let operation = operation.map_err(|_| anyhow!("the slice does not answer"))?;
        Ok(operation.map_err(|status| refused(&status))?.into_inner())
    }
}

/// Why there is no answer, on one line.
fn refused(status: &Status) -> anyhow::Error {
    match status.code() {
        // The connection has ended.
        Code::Unknown | Code::Unavailable if status.details().is_empty() => {
            anyhow!("the slice has ended")
        }
        _ => anyhow!("the slice refuses: {}", status.message()),
    }
}

/// A time in milliseconds.
pub(crate) fn milliseconds(time: Option<&prost_types::Duration>) -> f64 {
    let time = time.copied().unwrap_or_default();
    Duration::try_from(time).unwrap_or_default().as_secs_f64() * 1e3
}
