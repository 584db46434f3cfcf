//! What a caller is told of a problem: one table, as that of `vm-service`. Texts are for people.

use crate::decide::Refusal;
use crate::run::AskError;
use tonic::{Code, Status};
use vm_service::{Detail, Row, status_of_row};

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The leader does not do it, or there is none here.
    Asked(AskError),
    /// A field cannot be.
    Invalid {
        /// Which.
        field: String,
    },
    /// There is no such operation, or not any more.
    OperationNotFound,
    /// What was waited for will not come.
    GoalLost,
    /// It was tried, and undone.
    OperationFailed,
    /// What is done to a VM is not cancelled: what is wanted is changed instead.
    NotCancellable,
    /// Operations are forgotten by themselves.
    NotDeletable,
    /// Too many clients wait for operations.
    TooManyWaits,
    /// Too many clients watch.
    TooManyWatchers,
    /// A client does not read what it watches.
    SlowConsumer,
}

fn full(reason: &'static str, subject: &'static str) -> Row {
    Row::new(Code::ResourceExhausted, reason).detail(Detail::Quota(subject))
}

fn invalid_row(field: &str) -> Row {
    Row::new(Code::InvalidArgument, "INVALID_SPEC").detail(Detail::Field(field.to_owned()))
}

/// The row of a problem.
#[must_use]
pub fn row(problem: &Problem) -> Row {
    match problem {
        Problem::Asked(AskError::Refused(refusal)) => row_of_refusal(refusal),
        Problem::Asked(AskError::NotLeader { leader }) => not_leader(leader.as_ref()),
        Problem::Asked(AskError::Busy) => full("TOO_MANY_CALLS", "calls").again(),
        Problem::Asked(AskError::Lost) => Row::new(Code::Unavailable, "LEADER_LOST").again(),
        Problem::Invalid { field } => invalid_row(field),
        Problem::OperationNotFound => Row::new(Code::NotFound, "OPERATION_NOT_FOUND"),
        Problem::GoalLost => Row::new(Code::FailedPrecondition, "VM_DELETED"),
        Problem::OperationFailed => Row::new(Code::Aborted, "OPERATION_FAILED"),
        Problem::NotCancellable => Row::new(Code::Unimplemented, "NOT_CANCELLABLE"),
        Problem::NotDeletable => Row::new(Code::Unimplemented, "NOT_DELETABLE"),
        Problem::TooManyWaits => full("TOO_MANY_CALLS", "calls").again(),
        Problem::TooManyWatchers => full("TOO_MANY_WATCHERS", "watchers").again(),
        Problem::SlowConsumer => Row::new(Code::Aborted, "SLOW_CONSUMER"),
    }
}

fn not_leader(leader: Option<&String>) -> Row {
    let row = Row::new(Code::Unavailable, "NOT_LEADER").again();
    match leader {
        Some(leader) => row.with("leader", leader),
        None => row,
    }
}

fn row_of_refusal(refusal: &Refusal) -> Row {
    let precondition = |reason| Row::new(Code::FailedPrecondition, reason);
    match refusal {
        Refusal::VmExists(_) => Row::new(Code::AlreadyExists, "VM_EXISTS"),
        Refusal::NoVm(_) => Row::new(Code::NotFound, "VM_NOT_FOUND"),
        Refusal::VmDeleted(_) => precondition("VM_DELETED"),
        Refusal::NoHost(_) => Row::new(Code::NotFound, "HOST_NOT_FOUND"),
        Refusal::HostExists { agent, .. } => {
            Row::new(Code::AlreadyExists, "HOST_EXISTS").with("agent", agent)
        }
        Refusal::AgentKnown { host, .. } => {
            Row::new(Code::AlreadyExists, "AGENT_KNOWN").with("host", host)
        }
        Refusal::HostInUse { count, .. } => precondition("HOST_IN_USE").with("vms", count),
        Refusal::Invalid { field, .. } => invalid_row(field),
        Refusal::Etag { current } => Row::new(Code::Aborted, "ETAG_MISMATCH").with("etag", current),
        Refusal::RequestReused => Row::new(Code::InvalidArgument, "REQUEST_ID_REUSED")
            .detail(Detail::Field("request_id".into())),
        Refusal::PlanStale => Row::new(Code::Aborted, "PLAN_STALE"),
        Refusal::TooMany { .. } => full("CLUSTER_FULL", "cluster"),
        Refusal::Deposed => not_leader(None),
    }
}

/// The status that a caller gets.
#[must_use]
pub fn status(problem: &Problem, message: &str) -> Status {
    status_of_row(row(problem), message)
}

/// The status of a field that cannot be.
pub(crate) fn invalid(field: &str, message: &str) -> Status {
    let problem = Problem::Invalid { field: field.to_owned() };
    status(&problem, &format!("{field}: {message}"))
}

impl From<AskError> for Status {
    fn from(error: AskError) -> Self {
        let text = error.to_string();
        status(&Problem::Asked(error), &text)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        AskError::Refused(refusal).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use state::Name;
    use tonic_types::StatusExt;

    fn refused() -> Vec<(Refusal, Code, &'static str)> {
        let name = || Name::new("a").unwrap();
        let (agent, why, what) = (String::new(), String::new(), "VMs");
        vec![
            (Refusal::VmExists(name()), Code::AlreadyExists, "VM_EXISTS"),
            (Refusal::NoVm(name()), Code::NotFound, "VM_NOT_FOUND"),
            (Refusal::VmDeleted(name()), Code::FailedPrecondition, "VM_DELETED"),
            (Refusal::NoHost(name()), Code::NotFound, "HOST_NOT_FOUND"),
            (
                Refusal::HostExists { name: name(), agent: agent.clone() },
                Code::AlreadyExists,
                "HOST_EXISTS",
            ),
            (Refusal::AgentKnown { host: name(), agent }, Code::AlreadyExists, "AGENT_KNOWN"),
            (
                Refusal::HostInUse { name: name(), count: 2 },
                Code::FailedPrecondition,
                "HOST_IN_USE",
            ),
            (Refusal::Invalid { field: "x", why }, Code::InvalidArgument, "INVALID_SPEC"),
            (Refusal::Etag { current: "1".into() }, Code::Aborted, "ETAG_MISMATCH"),
            (Refusal::RequestReused, Code::InvalidArgument, "REQUEST_ID_REUSED"),
            (Refusal::PlanStale, Code::Aborted, "PLAN_STALE"),
            (Refusal::TooMany { what, count: 3 }, Code::ResourceExhausted, "CLUSTER_FULL"),
            (Refusal::Deposed, Code::Unavailable, "NOT_LEADER"),
        ]
    }

    /// What docs/api.md says.
    #[test]
    fn each_problem_has_its_code_and_reason() {
        let leader = Some("a".to_owned());
        let others = [
            (Problem::Asked(AskError::NotLeader { leader }), Code::Unavailable, "NOT_LEADER"),
            (Problem::Asked(AskError::Busy), Code::ResourceExhausted, "TOO_MANY_CALLS"),
            (Problem::Asked(AskError::Lost), Code::Unavailable, "LEADER_LOST"),
            (Problem::Invalid { field: "x".into() }, Code::InvalidArgument, "INVALID_SPEC"),
            (Problem::OperationNotFound, Code::NotFound, "OPERATION_NOT_FOUND"),
            (Problem::GoalLost, Code::FailedPrecondition, "VM_DELETED"),
            (Problem::OperationFailed, Code::Aborted, "OPERATION_FAILED"),
            (Problem::NotCancellable, Code::Unimplemented, "NOT_CANCELLABLE"),
            (Problem::NotDeletable, Code::Unimplemented, "NOT_DELETABLE"),
            (Problem::TooManyWaits, Code::ResourceExhausted, "TOO_MANY_CALLS"),
            (Problem::TooManyWatchers, Code::ResourceExhausted, "TOO_MANY_WATCHERS"),
            (Problem::SlowConsumer, Code::Aborted, "SLOW_CONSUMER"),
        ];
        let page = include_str!("../../../../docs/api.md");
        let refused = refused().into_iter();
        let refused =
            refused.map(|(it, code, name)| (Problem::Asked(AskError::Refused(it)), code, name));
        for (problem, code, reason) in refused.chain(others) {
            let status = status(&problem, "why");
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!((status.code(), info.reason.as_str()), (code, reason));
            assert_eq!(info.domain, control::ERROR_DOMAIN);
            assert!(page.contains(&format!("`{reason}`")), "{reason} is not in docs/api.md");
            let retry = details.retry_info().is_some();
            assert_eq!(retry, row(&problem).retry.is_some(), "{reason}");
        }
    }

    #[test]
    fn who_leads_is_told() {
        let leader = Some("https://b:7500".to_owned());
        let told = row(&Problem::Asked(AskError::NotLeader { leader })).metadata;
        assert_eq!(told, [("leader", "https://b:7500".to_owned())]);
    }
}
