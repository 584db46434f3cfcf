//! Operations that go on after the call that has begun them: the table, and `google.longrunning.Operations` over it.
//!
//! ```text
//!   begun --tell--> goes on --its work returns--> done, unread --a client has seen it, or GRACE--> done, read
//!                                                                                                   |
//!                                       forgotten <--DeleteOperation, or too many later ones--------+
//! ```
//! The work runs on a thread that may wait. A process that ends waits for clients to see how its operations have ended: not longer
//! than GRACE, and not for an operation that nobody asks about.

use crate::problem::{Problem, invalid, status};
use crate::shape;
use control::google::rpc::Status as RpcStatus;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_server::Operations as Service;
use control::longrunning::{
    CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, WaitOperationRequest,
};
use control::v1::OperationProgress;
use prost::Message;
use prost_types::{Any, Timestamp};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};
use vmm::control::{Answering, Desk, Progress};

/// Operations that go on at a time. The VM itself does one thing at a time.
pub(crate) const RUNNING_MAX: usize = 8;
/// Operations that are known at a time.
pub(crate) const KNOWN_MAX: usize = 256;
/// Operations on a page, at most and unless asked.
const PAGE_MAX: usize = 100;
/// For somebody to see how an operation has ended.
const GRACE: Duration = Duration::from_secs(5);
/// Nobody waits longer in one call.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// What comes of an operation: the name of its message and the bytes.
pub(crate) type Result<T> = std::result::Result<T, Status>;

/// How an operation stands.
#[derive(Clone, Debug)]
struct Stand {
    progress: OperationProgress,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Known {
    stand: watch::Sender<Stand>,
    /// Holds the process's end up until somebody knows of this one's.
    unread: Mutex<Option<Answering>>,
}

#[derive(Debug)]
struct Table {
    known: BTreeMap<u64, Arc<Known>>,
    next: u64,
}

/// The operations of this process. Clones are of the same table.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    desk: Desk,
    table: Arc<Mutex<Table>>,
    /// Names of another process mean nothing here.
    process: u32,
}

/// A message of the API as `google.protobuf.Any`.
pub(crate) fn any(name: &str, message: &impl Message) -> Any {
    let type_url = format!("type.googleapis.com/tessera.control.v1.{name}");
    Any { type_url, value: message.encode_to_vec() }
}

fn now() -> Option<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).ok()?;
    Some(Timestamp { seconds, nanos: i32::try_from(since.subsec_nanos()).ok()? })
}

impl Operations {
    pub(crate) fn new(desk: Desk) -> Self {
        // Which process this is, as far as two of them are to be told apart.
        let process = u32::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(0);
        let table = Arc::new(Mutex::new(Table { known: BTreeMap::new(), next: 1 }));
        Self { desk, table, process }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, number: u64) -> String {
        format!("operations/{:08x}-{number}", self.process)
    }

    /// Begins one, whose work may wait for long and tells how far it has come. How it stands now.
    pub(crate) fn begin(
        &self,
        (method, request_id, unit): (&str, &str, &str),
        work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Any> + Send + 'static,
    ) -> Result<Operation> {
        let progress = OperationProgress {
            method: method.into(),
            request_id: request_id.into(),
            unit: unit.into(),
            start_time: now(),
            ..OperationProgress::default()
        };
        let (number, known) = self.add(Stand { progress, outcome: None })?;
        let own = Arc::clone(&known);
        tokio::spawn(async move {
            let teller = Arc::clone(&own);
            let mut tell = move |far: Progress| {
                let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
                teller.stand.send_modify(|stand| {
                    let progress = &mut stand.progress;
                    (progress.done_units, progress.total_units) =
                        (count(far.done), count(far.total));
                    progress.phase = far.next;
                });
            };
            let done = spawn_blocking(move || work(&mut tell)).await;
            let result = done.unwrap_or_else(|_| Err(Status::unavailable("the process ends")));
            own.end(result);
            sleep(GRACE).await;
            own.read();
        });
        Ok(known.operation(self.name(number)))
    }

    /// One that is done already: nothing of it goes on.
    pub(crate) fn done(
        &self,
        (method, request_id): (&str, &str),
        result: Any,
    ) -> Result<Operation> {
        let (start_time, method, request_id) = (now(), method.into(), request_id.into());
        let end_time = start_time;
        let progress =
            OperationProgress { method, request_id, start_time, end_time, ..Default::default() };
        let (number, known) =
            self.add(Stand { progress, outcome: Some(Outcome::Response(result)) })?;
        known.read();
        Ok(known.operation(self.name(number)))
    }

    fn add(&self, stand: Stand) -> Result<(u64, Arc<Known>)> {
        let mut table = self.table();
        let running = table.known.values().filter(|known| !known.is_done()).count();
        if stand.outcome.is_none() && running >= RUNNING_MAX {
            let text = format!("{running} operations go on already");
            return Err(status(&Problem::TooManyOperations, &text));
        }
        while table.known.len() >= KNOWN_MAX {
            let oldest = table.known.iter().find(|(_, known)| known.is_done());
            let Some(oldest) = oldest.map(|(number, _)| *number) else { break };
            table.known.remove(&oldest);
        }
        let number = table.next;
        table.next += 1;
        let unread = Mutex::new(Some(self.desk.begin_answer()));
        let known = Arc::new(Known { stand: watch::Sender::new(stand), unread });
        table.known.insert(number, Arc::clone(&known));
        Ok((number, known))
    }

    fn find(&self, name: &str) -> Result<(u64, Arc<Known>)> {
        let unknown = || {
            let text = "there is no such operation, or it was forgotten, or of another process";
            status(&Problem::OperationNotFound, text)
        };
        let id = name.strip_prefix("operations/").and_then(|id| id.split_once('-'));
        let (process, number) = id.ok_or_else(unknown)?;
        let number: u64 = number.parse().map_err(|_| unknown())?;
        if process != format!("{:08x}", self.process) {
            return Err(unknown());
        }
        let known = self.table().known.get(&number).cloned();
        known.map(|known| (number, known)).ok_or_else(unknown)
    }

    /// Tells a client how one stands, who knows then how it has ended if it has.
    fn tell(&self, (number, known): (u64, &Known)) -> Operation {
        let operation = known.operation(self.name(number));
        if operation.done {
            known.read();
        }
        operation
    }
}

impl Known {
    fn is_done(&self) -> bool {
        self.stand.borrow().outcome.is_some()
    }

    fn end(&self, result: Result<Any>) {
        let outcome = match result {
            Ok(response) => Outcome::Response(response),
            Err(status) => Outcome::Error(in_full(&status)),
        };
        self.stand.send_modify(|stand| {
            stand.outcome = Some(outcome);
            stand.progress.end_time = now();
        });
    }

    fn read(&self) {
        drop(self.unread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn operation(&self, name: String) -> Operation {
        let Stand { progress, outcome } = self.stand.borrow().clone();
        let metadata = Some(any("OperationProgress", &progress));
        Operation { name, metadata, done: outcome.is_some(), result: outcome }
    }
}

/// A status with its details, as an operation says it.
fn in_full(status: &Status) -> RpcStatus {
    let full = RpcStatus::decode(status.details());
    full.ok().filter(|full| full.code != 0).unwrap_or_else(|| RpcStatus {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Vec::new(),
    })
}

#[tonic::async_trait]
impl Service for Operations {
    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>> {
        let ListOperationsRequest { name, filter, page_size, page_token } = request.into_inner();
        if !name.is_empty() && name != "operations" {
            return Err(invalid("name", "the collection is operations"));
        }
        if !filter.is_empty() {
            return Err(invalid("filter", "operations are not filtered"));
        }
        let size =
            usize::try_from(page_size).map_err(|_| invalid("page_size", "it is negative"))?;
        let size = if size == 0 { PAGE_MAX } else { size.min(PAGE_MAX) };
        let before: u64 = match &page_token[..] {
            "" => u64::MAX,
            token => token.parse().map_err(|_| invalid("page_token", "it is of no page before"))?,
        };
        let table = self.table();
        let mut older = table.known.range(..before).rev();
        let page: Vec<_> = older.by_ref().take(size).collect();
        let next_page_token = match (page.last(), older.next()) {
            (Some((number, _)), Some(_)) => number.to_string(),
            _ => String::new(),
        };
        let operations =
            page.into_iter().map(|(number, known)| known.operation(self.name(*number)));
        Ok(Response::new(ListOperationsResponse {
            operations: operations.collect(),
            next_page_token,
        }))
    }

    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>> {
        let (number, known) = self.find(&request.into_inner().name)?;
        Ok(Response::new(self.tell((number, &known))))
    }

    async fn delete_operation(
        &self,
        request: Request<DeleteOperationRequest>,
    ) -> Result<Response<()>> {
        let (number, known) = self.find(&request.into_inner().name)?;
        if !known.is_done() {
            return Err(status(&Problem::OperationRunning, "the operation goes on"));
        }
        self.table().known.remove(&number);
        Ok(Response::new(()))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<()>> {
        let (_, known) = self.find(&request.into_inner().name)?;
        if known.is_done() {
            return Ok(Response::new(()));
        }
        let text =
            "what is done to a VM cannot be stopped half-way; it ends by itself, within its limits";
        Err(status(&Problem::NotCancellable, text))
    }

    async fn wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>> {
        let WaitOperationRequest { name, timeout: limit } = request.into_inner();
        let (number, known) = self.find(&name)?;
        let limit = limit.map(|limit| shape::time("timeout", limit)).transpose()?;
        let mut stand = known.stand.subscribe();
        let done = stand.wait_for(|stand| stand.outcome.is_some());
        // That it is not over in this time is an answer too.
        let _ = timeout(limit.unwrap_or(WAIT_MAX).min(WAIT_MAX), done).await.map(|_| ());
        Ok(Response::new(self.tell((number, &known))))
    }
}

#[cfg(test)]
mod tests;
