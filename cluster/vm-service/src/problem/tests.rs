use super::*;
use std::collections::BTreeSet;

/// One of each, with what a client gets. The numbers below prove that none is missing.
fn all() -> Vec<(Problem, Code, &'static str)> {
    let vm = Problem::Vm;
    let field = || "hold".to_owned();
    vec![
        (vm(Reason::Malformed), Code::InvalidArgument, "MALFORMED_REQUEST"),
        (vm(Reason::NotAllowed), Code::PermissionDenied, "NOT_ALLOWED"),
        (vm(Reason::TooManyClients), Code::ResourceExhausted, "TOO_MANY_CLIENTS"),
        (vm(Reason::NoVm), Code::Unavailable, "VM_NOT_STARTED"),
        (vm(Reason::Over), Code::FailedPrecondition, "VM_OVER"),
        (vm(Reason::NotLeader { leader: Some(2) }), Code::Unavailable, "NOT_LEADER"),
        (vm(Reason::NoEngine), Code::FailedPrecondition, "NO_MEMORY_ENGINE"),
        (vm(Reason::EngineSilent), Code::DeadlineExceeded, "MEMORY_ENGINE_SILENT"),
        (vm(Reason::Busy(Activity::Moving)), Code::Aborted, "OPERATION_IN_PROGRESS"),
        (vm(Reason::Paused), Code::FailedPrecondition, "VM_PAUSED"),
        (vm(Reason::NotPaused), Code::FailedPrecondition, "VM_NOT_PAUSED"),
        (vm(Reason::Invalid { field: field() }), Code::InvalidArgument, "INVALID_SPEC"),
        (vm(Reason::NothingToDo), Code::FailedPrecondition, "NOTHING_TO_DO"),
        (vm(Reason::NoCapacity), Code::ResourceExhausted, "NO_CAPACITY"),
        (vm(Reason::HostUnfit), Code::FailedPrecondition, "HOST_UNFIT"),
        (vm(Reason::SliceLost { slice: 1 }), Code::Unavailable, "SLICE_LOST"),
        (vm(Reason::Unsupported), Code::FailedPrecondition, "VM_LACKS_FEATURE"),
        (vm(Reason::GuestRefused), Code::FailedPrecondition, "GUEST_REFUSED"),
        (vm(Reason::Silent), Code::DeadlineExceeded, "NO_ANSWER"),
        (vm(Reason::Partly { done: 2, total: 5 }), Code::Aborted, "PARTLY_DONE"),
        (vm(Reason::Failed), Code::Aborted, "OPERATION_FAILED"),
        (Problem::VmNotFound, Code::NotFound, "VM_NOT_FOUND"),
        (Problem::EtagMismatch { current: "7".into() }, Code::Aborted, "ETAG_MISMATCH"),
        (Problem::RequestIdReused, Code::InvalidArgument, "REQUEST_ID_REUSED"),
        (Problem::TooManyCalls, Code::ResourceExhausted, "TOO_MANY_CALLS"),
        (Problem::TooManyOperations, Code::ResourceExhausted, "TOO_MANY_OPERATIONS"),
        (Problem::TooManyWatchers, Code::ResourceExhausted, "TOO_MANY_WATCHERS"),
        (Problem::SlowConsumer, Code::Aborted, "SLOW_CONSUMER"),
        (Problem::ResumeTokenExpired, Code::OutOfRange, "RESUME_TOKEN_EXPIRED"),
        (Problem::OperationNotFound, Code::NotFound, "OPERATION_NOT_FOUND"),
        (Problem::OperationRunning, Code::FailedPrecondition, "OPERATION_RUNNING"),
        (Problem::NotCancellable, Code::Unimplemented, "NOT_CANCELLABLE"),
        (Problem::OtherAnswer, Code::Internal, "OTHER_ANSWER"),
    ]
}

const COUNT: usize = 33;

/// A number for each kind; the compiler asks for those of new ones.
fn number(problem: &Problem) -> usize {
    match problem {
        Problem::Vm(reason) => match reason {
            Reason::Malformed => 0,
            Reason::NotAllowed => 1,
            Reason::TooManyClients => 2,
            Reason::NoVm => 3,
            Reason::Over => 4,
            Reason::NotLeader { .. } => 5,
            Reason::NoEngine => 6,
            Reason::EngineSilent => 7,
            Reason::Busy(_) => 8,
            Reason::Paused => 9,
            Reason::NotPaused => 10,
            Reason::Invalid { .. } => 11,
            Reason::NothingToDo => 12,
            Reason::NoCapacity => 13,
            Reason::HostUnfit => 14,
            Reason::SliceLost { .. } => 15,
            Reason::Unsupported => 16,
            Reason::GuestRefused => 17,
            Reason::Silent => 18,
            Reason::Partly { .. } => 19,
            Reason::Failed => 20,
        },
        Problem::VmNotFound => 21,
        Problem::EtagMismatch { .. } => 22,
        Problem::RequestIdReused => 23,
        Problem::TooManyCalls => 24,
        Problem::TooManyOperations => 25,
        Problem::TooManyWatchers => 26,
        Problem::SlowConsumer => 27,
        Problem::ResumeTokenExpired => 28,
        Problem::OperationNotFound => 29,
        Problem::OperationRunning => 30,
        Problem::NotCancellable => 31,
        Problem::OtherAnswer => COUNT - 1,
    }
}

#[test]
fn each_problem_has_its_row_and_clients_get_it() {
    let all = all();
    let numbers: BTreeSet<_> = all.iter().map(|(problem, ..)| number(problem)).collect();
    assert!(numbers.into_iter().eq(0..COUNT), "some are missing");
    let reasons: BTreeSet<_> = all.iter().map(|(_, _, reason)| reason).collect();
    assert_eq!(reasons.len(), COUNT, "no two problems have one reason");
    for (problem, code, reason) in &all {
        let row = row(problem);
        assert_eq!((row.code, row.reason), (*code, *reason), "{problem:?}");
        let status = status(problem, "words");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (*reason, "tessera"));
        assert_eq!((status.code(), status.message()), (*code, "words"));
        assert_eq!(details.retry_info().and_then(|it| it.retry_delay), row.retry, "{problem:?}");
        assert_eq!(is_untouched(&status), row.untouched, "{problem:?}");
        assert_eq!(info.metadata.len(), row.metadata.len());
    }
}

#[test]
fn details_say_what_and_where() {
    let details = |problem: &Problem| status(problem, "words").get_error_details();
    let bad = details(&Problem::Vm(Reason::Invalid { field: "hold".into() }));
    assert_eq!(bad.bad_request().unwrap().field_violations[0].field, "hold");
    let lost = details(&Problem::Vm(Reason::SliceLost { slice: 4 }));
    assert_eq!(lost.resource_info().unwrap().resource_name, "slices/4");
    let leader = details(&Problem::Vm(Reason::NotLeader { leader: Some(3) }));
    assert_eq!(leader.error_info().unwrap().metadata["leader"], "slices/3");
    let unknown = details(&Problem::Vm(Reason::NotLeader { leader: None }));
    assert!(unknown.error_info().unwrap().metadata.is_empty());
    let busy = details(&Problem::Vm(Reason::Busy(Activity::Checkpointing)));
    assert_eq!(busy.error_info().unwrap().metadata["activity"], "CHECKPOINTING");
    let partly = details(&Problem::Vm(Reason::Partly { done: 1, total: 3 }));
    assert_eq!(partly.error_info().unwrap().metadata["done"], "1");
    let etag = details(&Problem::EtagMismatch { current: "0.4".into() });
    assert_eq!(etag.error_info().unwrap().metadata["etag"], "0.4");
    let unfit = details(&Problem::Vm(Reason::HostUnfit));
    assert_eq!(unfit.precondition_failure().unwrap().violations[0].r#type, "HOST");
    let quota = details(&Problem::TooManyWatchers);
    assert_eq!(quota.quota_failure().unwrap().violations[0].subject, "watchers");
}

#[test]
fn long_words_are_cut() {
    let words = "ä".repeat(5000);
    assert!(status(&Problem::SlowConsumer, &words).message().len() <= 2048);
}
