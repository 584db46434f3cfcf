//! What a client is told of a problem: one table from causes to codes, reasons and details. Texts are for people; nothing here
//! looks at them.

use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use vmm::control::{Activity, Reason, Refusal};

/// A client may try again after this.
const SOON: Duration = Duration::from_secs(1);

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The VM's own reason.
    Vm(Reason),
    /// Another VM was named.
    VmNotFound,
    /// The VM has changed.
    EtagMismatch {
        /// As it is now.
        current: String,
    },
    /// The id was used for another request.
    RequestIdReused,
    /// Too many calls wait for the VM.
    TooManyCalls,
    /// Too many operations go on.
    TooManyOperations,
    /// Too many clients watch.
    TooManyWatchers,
    /// A client does not read what it watches.
    SlowConsumer,
    /// A resume token is of another process.
    ResumeTokenExpired,
    /// There is no such operation, or not any more.
    OperationNotFound,
    /// The operation goes on.
    OperationRunning,
    /// The operation cannot be ended.
    NotCancellable,
    /// The VM gives an answer to another question: a mistake in the program.
    OtherAnswer,
}

/// What follows from a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The code of gRPC.
    pub code: Code,
    /// `google.rpc.ErrorInfo.reason`. Stable.
    pub reason: &'static str,
    /// When the same request may do better.
    pub retry: Option<Duration>,
    /// Nothing was done: the same request with the same id may be tried again.
    pub untouched: bool,
    /// `google.rpc.ErrorInfo.metadata`.
    pub metadata: Vec<(&'static str, String)>,
    /// Which further detail it has.
    pub detail: Detail,
}

/// A detail beside `google.rpc.ErrorInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// None.
    None,
    /// `google.rpc.BadRequest` with this field.
    Field(String),
    /// `google.rpc.PreconditionFailure` of this type.
    Precondition(&'static str),
    /// `google.rpc.QuotaFailure` of this subject.
    Quota(&'static str),
    /// `google.rpc.ResourceInfo`: type and name.
    Resource(&'static str, String),
}

impl Row {
    /// Nothing was done, and nothing more is to be said.
    #[must_use]
    pub fn new(code: Code, reason: &'static str) -> Self {
        let (metadata, detail) = (Vec::new(), Detail::None);
        Self { code, reason, retry: None, untouched: true, metadata, detail }
    }

    /// The same request may do better soon.
    #[must_use]
    pub fn again(self) -> Self {
        Self { retry: Some(SOON), ..self }
    }

    fn touched(self) -> Self {
        Self { untouched: false, ..self }
    }

    /// Says one thing more.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: &impl ToString) -> Self {
        self.metadata.push((key, value.to_string()));
        self
    }

    /// With this detail.
    #[must_use]
    pub fn detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }
}

fn activity(activity: Activity) -> &'static str {
    match activity {
        Activity::Moving => "MOVING",
        Activity::Checkpointing => "CHECKPOINTING",
        Activity::ChangingVcpus => "CHANGING_VCPUS",
        Activity::Pausing => "PAUSING",
    }
}

/// The row of a problem.
#[must_use]
pub fn row(problem: &Problem) -> Row {
    match problem {
        Problem::Vm(reason) => row_of_vm(reason),
        Problem::VmNotFound => Row::new(Code::NotFound, "VM_NOT_FOUND"),
        Problem::EtagMismatch { current } => {
            Row::new(Code::Aborted, "ETAG_MISMATCH").with("etag", current)
        }
        Problem::RequestIdReused => Row::new(Code::InvalidArgument, "REQUEST_ID_REUSED")
            .detail(Detail::Field("request_id".into())),
        Problem::TooManyCalls => full("TOO_MANY_CALLS", "calls"),
        Problem::TooManyOperations => full("TOO_MANY_OPERATIONS", "operations"),
        Problem::TooManyWatchers => full("TOO_MANY_WATCHERS", "watchers"),
        Problem::SlowConsumer => Row::new(Code::Aborted, "SLOW_CONSUMER"),
        Problem::ResumeTokenExpired => Row::new(Code::OutOfRange, "RESUME_TOKEN_EXPIRED"),
        Problem::OperationNotFound => Row::new(Code::NotFound, "OPERATION_NOT_FOUND"),
        Problem::OperationRunning => Row::new(Code::FailedPrecondition, "OPERATION_RUNNING"),
        Problem::NotCancellable => Row::new(Code::Unimplemented, "NOT_CANCELLABLE"),
        Problem::OtherAnswer => Row::new(Code::Internal, "OTHER_ANSWER").touched(),
    }
}

fn full(reason: &'static str, subject: &'static str) -> Row {
    Row::new(Code::ResourceExhausted, reason).again().detail(Detail::Quota(subject))
}

fn row_of_vm(reason: &Reason) -> Row {
    let precondition = |reason| Row::new(Code::FailedPrecondition, reason);
    match reason {
        Reason::Malformed => Row::new(Code::InvalidArgument, "MALFORMED_REQUEST"),
        Reason::NotAllowed => Row::new(Code::PermissionDenied, "NOT_ALLOWED"),
        Reason::TooManyClients => full("TOO_MANY_CLIENTS", "clients"),
        Reason::NoVm => Row::new(Code::Unavailable, "VM_NOT_STARTED").again(),
        Reason::Over => precondition("VM_OVER"),
        Reason::NotLeader { leader } => {
            let row = Row::new(Code::Unavailable, "NOT_LEADER").again();
            match leader {
                Some(leader) => row.with("leader", &format!("slices/{leader}")),
                None => row,
            }
        }
        Reason::NoEngine => precondition("NO_MEMORY_ENGINE"),
        Reason::EngineSilent => {
            Row::new(Code::DeadlineExceeded, "MEMORY_ENGINE_SILENT").again().touched()
        }
        Reason::Busy(what) => Row::new(Code::Aborted, "OPERATION_IN_PROGRESS")
            .again()
            .with("activity", &activity(*what)),
        Reason::Paused => precondition("VM_PAUSED"),
        Reason::NotPaused => precondition("VM_NOT_PAUSED"),
        Reason::Invalid { field } => {
            Row::new(Code::InvalidArgument, "INVALID_SPEC").detail(Detail::Field(field.clone()))
        }
        Reason::NothingToDo => precondition("NOTHING_TO_DO"),
        Reason::NoCapacity => {
            Row::new(Code::ResourceExhausted, "NO_CAPACITY").detail(Detail::Quota("slices"))
        }
        Reason::HostUnfit => precondition("HOST_UNFIT").detail(Detail::Precondition("HOST")),
        Reason::SliceLost { slice } => Row::new(Code::Unavailable, "SLICE_LOST")
            .detail(Detail::Resource("tessera.control.v1.Slice", format!("slices/{slice}"))),
        Reason::Unsupported => precondition("VM_LACKS_FEATURE").detail(Detail::Precondition("VM")),
        Reason::GuestRefused => {
            precondition("GUEST_REFUSED").touched().detail(Detail::Precondition("GUEST"))
        }
        Reason::Silent => Row::new(Code::DeadlineExceeded, "NO_ANSWER").touched(),
        Reason::Partly { done, total } => {
            Row::new(Code::Aborted, "PARTLY_DONE").touched().with("done", done).with("total", total)
        }
        Reason::Failed => Row::new(Code::Aborted, "OPERATION_FAILED").touched(),
    }
}

/// The status that a client gets. gRPC carries it in a header: text is bounded.
#[must_use]
pub fn status(problem: &Problem, message: &str) -> Status {
    status_of_row(row(problem), message)
}

/// The same of a row of another table.
#[must_use]
pub fn status_of_row(row: Row, message: &str) -> Status {
    const MESSAGE_MAX: usize = 2048;
    let message = &message[..message.floor_char_boundary(MESSAGE_MAX)];
    let metadata: HashMap<String, String> =
        row.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut details = ErrorDetails::new();
    details.set_error_info(row.reason, control::ERROR_DOMAIN, metadata);
    if row.retry.is_some() {
        details.set_retry_info(row.retry);
    }
    match row.detail {
        Detail::None => {}
        Detail::Field(field) => {
            details.add_bad_request_violation(field, message);
        }
        Detail::Precondition(kind) => {
            details.add_precondition_failure_violation(kind, "vm", message);
        }
        Detail::Quota(subject) => {
            details.add_quota_failure_violation(subject, message);
        }
        Detail::Resource(kind, name) => {
            details.set_resource_info(kind, name, "", message);
        }
    }
    Status::with_error_details(row.code, message, details)
}

/// The status of something that a VM refuses.
pub(crate) fn refused(refusal: Refusal) -> Status {
    status(&Problem::Vm(refusal.reason), &refusal.message)
}

/// The status of a part of a request that cannot be.
pub(crate) fn invalid(field: &str, message: &str) -> Status {
    status(&Problem::Vm(Reason::Invalid { field: field.to_owned() }), message)
}

/// The answer is one to something else.
pub(crate) fn other_answer() -> Status {
    status(&Problem::OtherAnswer, "the VM has answered something else: this is a bug")
}

/// Whether a failed call has left everything as it was.
pub(crate) fn is_untouched(status: &Status) -> bool {
    let info = status.get_error_details();
    let reason = info.error_info().map(|info| info.reason.as_str());
    // Which of the reasons it is: the table says the rest.
    reason.is_some_and(|reason| !TOUCHED.contains(&reason))
}

/// Reasons of rows that are not `untouched`.
const TOUCHED: [&str; 6] = [
    "MEMORY_ENGINE_SILENT",
    "GUEST_REFUSED",
    "NO_ANSWER",
    "PARTLY_DONE",
    "OPERATION_FAILED",
    "OTHER_ANSWER",
];

#[cfg(test)]
mod tests;
