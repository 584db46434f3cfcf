//! `google.longrunning.Operations` over what the store has: goals of those who asked, and what is being done to VMs.
//!
//! ```text
//!   operations/create-UID, operations/delete-UID   a goal: done once the VM runs, or is no more; however often it is tried
//!   operations/32 DIGITS                           what the orchestrator does to a VM, step by step; kept for a while after it is done
//! ```
//! They outlive the orchestrator: any leader answers. Nothing is cancelled: who changes his mind changes what is wanted.

use super::names::{page, page_token};
use super::problem::{Problem, invalid, status};
use super::shape;
use crate::decide::{Goal, Orchestrator, Reached};
use crate::run::{Handle, View};
use control::google::rpc::Status as RpcStatus;
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_server::Operations as Service;
use control::longrunning::{
    CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, WaitOperationRequest,
};
use control::v1::ClusterProgress;
use prost::Message;
use prost_types::Any;
use state::{Name, OperationResult, Vm};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

/// Operations on a page, at most and unless asked.
const PAGE_MAX: usize = 100;
/// Clients that wait at a time.
const WAITS_MAX: usize = 1024;
/// Nobody waits longer in one call.
const WAIT_MAX: Duration = Duration::from_secs(600);

type Result<T> = std::result::Result<T, Status>;

/// The operations of the cluster. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    handle: Handle,
    waits: Arc<Semaphore>,
}

/// A message as `google.protobuf.Any`.
fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

fn progress(progress: &ClusterProgress) -> Option<Any> {
    Some(any("tessera.control.v1.ClusterProgress", progress))
}

fn response_vm(machine: &Orchestrator, vm: &Vm) -> Outcome {
    Outcome::Response(any("tessera.control.v1.ClusterVm", &shape::vm(machine, vm)))
}

fn nothing() -> Outcome {
    Outcome::Response(any("google.protobuf.Empty", &()))
}

/// A status with its details, as an operation says it.
fn error(status: &Status) -> Outcome {
    let full = RpcStatus::decode(status.details());
    Outcome::Error(full.ok().filter(|full| full.code != 0).unwrap_or_else(|| RpcStatus {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Vec::new(),
    }))
}

/// One that is done without anything having been done.
pub(crate) fn valid() -> Operation {
    Operation { done: true, result: Some(nothing()), ..Operation::default() }
}

/// How a goal stands.
fn goal(machine: &Orchestrator, name: &Name, reached: &Reached) -> Operation {
    let verb = match Goal::parse(name) {
        Some((Goal::Deleted, _)) => "delete",
        _ => "create",
    };
    let bare = |vm: &Vm| ClusterProgress {
        target: format!("vms/{}", vm.name),
        verb: verb.to_owned(),
        ..ClusterProgress::default()
    };
    let far = |vm: &Vm| machine.going_on(&vm.name).map_or_else(|| bare(vm), shape::progress);
    let (metadata, result) = match reached {
        Reached::Not(vm) => (progress(&far(vm)), None),
        Reached::With(vm) => (progress(&bare(vm)), Some(response_vm(machine, vm))),
        Reached::Gone => (None, Some(nothing())),
        Reached::Never => {
            let text = "the VM is no more, or is being deleted";
            (None, Some(error(&status(&Problem::GoalLost, text))))
        }
    };
    let name = format!("operations/{name}");
    Operation { name, metadata, done: result.is_some(), result }
}

/// What is being done to a VM, or was.
fn work(operation: &state::Operation) -> Operation {
    let result = operation.result.as_ref().map(|result| match result {
        OperationResult::Done => nothing(),
        OperationResult::Failed { why } => error(&status(&Problem::OperationFailed, why)),
    });
    Operation {
        name: format!("operations/{}", operation.id),
        metadata: progress(&shape::progress(operation)),
        done: result.is_some(),
        result,
    }
}

/// An operation by its name.
pub(crate) fn find(machine: &Orchestrator, name: &Name) -> Option<Operation> {
    match machine.reached(name) {
        Some(reached) => Some(goal(machine, name, &reached)),
        None => machine.operation_of(name).map(work),
    }
}

fn unknown() -> Status {
    status(&Problem::OperationNotFound, "there is no such operation, or it was forgotten")
}

fn parse(name: &str) -> Result<Name> {
    let bare = name.strip_prefix("operations/").and_then(|bare| Name::new(bare).ok());
    bare.ok_or_else(unknown)
}

impl Operations {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, waits: Arc::new(Semaphore::new(WAITS_MAX)) }
    }

    async fn find(&self, name: &Name) -> Result<Operation> {
        let name = name.clone();
        let found = self.handle.look(move |view| find(view.machine, &name)).await?;
        found.ok_or_else(unknown)
    }
}

#[tonic::async_trait]
impl Service for Operations {
    async fn list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>> {
        let ListOperationsRequest { name, filter, page_size, page_token: token } =
            request.into_inner();
        if !name.is_empty() && name != "operations" {
            return Err(invalid("name", "the collection is operations"));
        }
        if !filter.is_empty() {
            return Err(invalid("filter", "operations are not filtered"));
        }
        let size = usize::try_from(page_size);
        let size = size.map_err(|_| invalid("page_size", "it is negative"))?;
        let size = if size == 0 { PAGE_MAX } else { size.min(PAGE_MAX) };
        let before = page_token(&token)?;
        let look = move |view: &View<'_>| {
            let newest = view.machine.operations().rev();
            let older = newest.filter(|it| before.as_ref().is_none_or(|before| it.id < *before));
            page(older, size, |it| (it.id.clone(), work(it)))
        };
        let (operations, next_page_token) = self.handle.look(look).await?;
        Ok(Response::new(ListOperationsResponse { operations, next_page_token }))
    }

    async fn get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>> {
        self.find(&parse(&request.into_inner().name)?).await.map(Response::new)
    }

    async fn delete_operation(
        &self,
        request: Request<DeleteOperationRequest>,
    ) -> Result<Response<()>> {
        self.find(&parse(&request.into_inner().name)?).await?;
        Err(status(&Problem::NotDeletable, "operations are forgotten by themselves"))
    }

    async fn cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<()>> {
        let found = self.find(&parse(&request.into_inner().name)?).await?;
        if found.done {
            return Ok(Response::new(()));
        }
        let text = "nothing is cancelled: change what is wanted of the VM, or delete it";
        Err(status(&Problem::NotCancellable, text))
    }

    async fn wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>> {
        let WaitOperationRequest { name, timeout: limit } = request.into_inner();
        let name = parse(&name)?;
        let limit = limit.map(Duration::try_from).transpose();
        let limit = limit.map_err(|_| invalid("timeout", "this is no time"))?;
        let _place = self.waits.try_acquire().map_err(|_| {
            status(&Problem::TooManyWaits, &format!("{WAITS_MAX} clients wait already"))
        })?;
        let end = Instant::now() + limit.unwrap_or(WAIT_MAX).min(WAIT_MAX);
        let mut changes = self.handle.look(|view| view.changes()).await?;
        loop {
            let found = self.find(&name).await?;
            if found.done {
                return Ok(Response::new(found));
            }
            match timeout_at(end, changes.recv()).await {
                // That it is not over in this time is an answer too.
                Err(_) => return Ok(Response::new(found)),
                Ok(Ok(_) | Err(RecvError::Lagged(_))) => {}
                Ok(Err(RecvError::Closed)) => return Err(self.handle.not_leading().into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn error_of_an_operation_keeps_its_reason() {
        let failed = status(&Problem::OperationFailed, "host a: NO_CAPACITY");
        let Outcome::Error(told) = error(&failed) else { panic!("no error") };
        assert_eq!((told.code, told.message.as_str()), (10, "host a: NO_CAPACITY"));
        assert_eq!(told.details.len(), 1, "its ErrorInfo");
        let bare = error(&Status::new(Code::Internal, "why"));
        assert!(matches!(bare, Outcome::Error(told) if told.code == 13));
    }

    #[test]
    fn names_that_are_none_are_not_found() {
        for name in ["", "operations", "operations/", "vms/a", "operations/A"] {
            assert_eq!(parse(name).unwrap_err().code(), Code::NotFound, "{name}");
        }
        assert_eq!(parse("operations/create-1").unwrap().as_str(), "create-1");
    }
}
