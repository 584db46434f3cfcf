//! What a caller is told of a problem: one table, as that of `vm-service`. Texts are for people.

use crate::order::{Invalid, bytes};
use agent::decide::Refusal;
use agent::runtime::AskError;
use tonic::{Code, Status};
use vm_service::{Detail, Row, status_of_row};

/// Why a call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The agent refuses.
    Refused(Refusal),
    /// The agent cannot write its journal.
    Journal,
    /// Too many requests wait.
    TooManyCalls,
    /// The agent ends.
    Ending,
    /// A field cannot be.
    Invalid {
        /// Which.
        field: String,
    },
    /// No port is free for a companion.
    NoPort,
    /// Files of slices cannot be written.
    State,
    /// Another host was named.
    HostNotFound,
    /// Too many clients watch.
    TooManyWatchers,
    /// A client does not read what it watches.
    SlowConsumer,
    /// A call for a slice does not say for which.
    SliceNotNamed,
    /// The slice that a call is for has no process.
    SliceNotRunning,
    /// The slice that a call is for does not answer on its control socket.
    SliceUnreachable,
    /// A checkpoint could not be deleted.
    CheckpointStays,
    /// A mistake in the program.
    Bug,
}

fn full(reason: &'static str, subject: &'static str) -> Row {
    Row::new(Code::ResourceExhausted, reason).detail(Detail::Quota(subject))
}

fn invalid(field: &str) -> Row {
    Row::new(Code::InvalidArgument, "INVALID_SPEC").detail(Detail::Field(field.to_owned()))
}

/// The row of a problem.
#[must_use]
pub fn row(problem: &Problem) -> Row {
    let precondition = |reason| Row::new(Code::FailedPrecondition, reason);
    match problem {
        Problem::Refused(refusal) => row_of_refusal(refusal),
        Problem::Journal => Row::new(Code::Unavailable, "JOURNAL_UNWRITABLE").again(),
        Problem::TooManyCalls => full("TOO_MANY_CALLS", "calls").again(),
        Problem::Ending => Row::new(Code::Unavailable, "AGENT_ENDS").again(),
        Problem::Invalid { field } => invalid(field),
        Problem::NoPort => full("NO_PORT", "ports").again(),
        Problem::State => Row::new(Code::Unavailable, "STATE_UNWRITABLE").again(),
        Problem::HostNotFound => Row::new(Code::NotFound, "HOST_NOT_FOUND"),
        Problem::TooManyWatchers => full("TOO_MANY_WATCHERS", "watchers").again(),
        Problem::SlowConsumer => Row::new(Code::Aborted, "SLOW_CONSUMER"),
        Problem::SliceNotNamed => Row::new(Code::InvalidArgument, "SLICE_NOT_NAMED"),
        Problem::SliceNotRunning => precondition("SLICE_NOT_RUNNING"),
        Problem::SliceUnreachable => Row::new(Code::Unavailable, "SLICE_UNREACHABLE").again(),
        Problem::CheckpointStays => precondition("CHECKPOINT_STAYS"),
        Problem::Bug => Row::new(Code::Internal, "BUG"),
    }
}

fn row_of_refusal(refusal: &Refusal) -> Row {
    let precondition = |reason| Row::new(Code::FailedPrecondition, reason);
    match refusal {
        Refusal::StaleTerm { have, .. } => precondition("STALE_TERM").with("term", &have.0),
        Refusal::StaleGeneration { have, .. } => {
            precondition("STALE_GENERATION").with("lowest_life", &have.0)
        }
        Refusal::GenerationConflict => precondition("GENERATION_CONFLICT"),
        Refusal::OlderRuns(life) => precondition("OLDER_LIFE_RUNS").with("life", &life.0),
        Refusal::NoCapacity { free } => full("NO_CAPACITY", "host")
            .with("free_cores", &free.cores)
            .with("free_memory_bytes", &bytes(*free)),
        Refusal::Unknown => Row::new(Code::NotFound, "SLICE_NOT_FOUND"),
        Refusal::Runs => precondition("SLICE_RUNS"),
        Refusal::NotFenced(_) => precondition("LIFE_NOT_FENCED"),
        Refusal::HighestGeneration(_) => invalid("life"),
        Refusal::TooMany(_) => full("AGENT_FULL", "agent"),
    }
}

/// The status that a caller gets.
#[must_use]
pub fn status(problem: &Problem, message: &str) -> Status {
    status_of_row(row(problem), message)
}

/// The status of what the agent does not do.
pub(crate) fn not_done(error: &AskError) -> Status {
    let problem = match error {
        AskError::Refused(refusal) => Problem::Refused(refusal.clone()),
        AskError::Journal(_) => Problem::Journal,
        AskError::Busy => Problem::TooManyCalls,
        AskError::Gone => Problem::Ending,
    };
    status(&problem, &error.to_string())
}

impl From<Invalid> for Status {
    fn from(Invalid { field, message }: Invalid) -> Self {
        let text = format!("{field}: {message}");
        status(&Problem::Invalid { field }, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::decide::{Generation, Term};
    use scheduler::Resources;
    use tonic_types::StatusExt;

    /// What docs/api.md says.
    #[test]
    fn each_problem_has_its_code_and_reason() {
        let (have, got) = (Generation(3), Generation(2));
        let refused = [
            (
                Refusal::StaleTerm { have: Term(3), got: Term(2) },
                Code::FailedPrecondition,
                "STALE_TERM",
            ),
            (Refusal::StaleGeneration { have, got }, Code::FailedPrecondition, "STALE_GENERATION"),
            (Refusal::GenerationConflict, Code::FailedPrecondition, "GENERATION_CONFLICT"),
            (Refusal::OlderRuns(got), Code::FailedPrecondition, "OLDER_LIFE_RUNS"),
            (
                Refusal::NoCapacity { free: Resources::new(1, 2) },
                Code::ResourceExhausted,
                "NO_CAPACITY",
            ),
            (Refusal::Unknown, Code::NotFound, "SLICE_NOT_FOUND"),
            (Refusal::Runs, Code::FailedPrecondition, "SLICE_RUNS"),
            (Refusal::NotFenced(got), Code::FailedPrecondition, "LIFE_NOT_FENCED"),
            (Refusal::HighestGeneration(got), Code::InvalidArgument, "INVALID_SPEC"),
            (Refusal::TooMany("slices"), Code::ResourceExhausted, "AGENT_FULL"),
        ];
        let others = [
            (Problem::Journal, Code::Unavailable, "JOURNAL_UNWRITABLE"),
            (Problem::TooManyCalls, Code::ResourceExhausted, "TOO_MANY_CALLS"),
            (Problem::Ending, Code::Unavailable, "AGENT_ENDS"),
            (Problem::Invalid { field: "life".into() }, Code::InvalidArgument, "INVALID_SPEC"),
            (Problem::NoPort, Code::ResourceExhausted, "NO_PORT"),
            (Problem::State, Code::Unavailable, "STATE_UNWRITABLE"),
            (Problem::HostNotFound, Code::NotFound, "HOST_NOT_FOUND"),
            (Problem::TooManyWatchers, Code::ResourceExhausted, "TOO_MANY_WATCHERS"),
            (Problem::SlowConsumer, Code::Aborted, "SLOW_CONSUMER"),
            (Problem::SliceNotNamed, Code::InvalidArgument, "SLICE_NOT_NAMED"),
            (Problem::SliceNotRunning, Code::FailedPrecondition, "SLICE_NOT_RUNNING"),
            (Problem::SliceUnreachable, Code::Unavailable, "SLICE_UNREACHABLE"),
            (Problem::Bug, Code::Internal, "BUG"),
        ];
        let page = include_str!("../../../docs/api.md");
        let refused =
            refused.into_iter().map(|(it, code, name)| (Problem::Refused(it), code, name));
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
    fn numbers_of_a_refusal_are_told() {
        let free = Resources::new(1, 2);
        let told = row(&Problem::Refused(Refusal::NoCapacity { free })).metadata;
        let expected =
            [("free_cores", "1".to_owned()), ("free_memory_bytes", "4194304".to_owned())];
        assert_eq!(told, expected);
    }
}
