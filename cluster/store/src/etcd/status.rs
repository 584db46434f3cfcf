//! What an error of etcd means.

use tonic::{Code, Status};

use super::connection::causes;

/// What an error says of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It was refused: it has not happened, and will not.
    Refused,
    /// There is no room.
    Full,
    /// The revision is not kept any more.
    Compacted,
    /// Nothing has this revision yet.
    Future,
    /// Nobody knows; another member may answer.
    Lost,
}

/// etcd says which of two by text alone.
pub(super) fn meaning(status: &Status) -> Meaning {
    match status.code() {
        Code::OutOfRange if status.message().contains("future revision") => Meaning::Future,
        Code::OutOfRange => Meaning::Compacted,
        Code::ResourceExhausted if status.message().contains("space exceeded") => Meaning::Full,
        // Too many requests, or an answer that is larger than this side takes: it may have happened.
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::Unimplemented => Meaning::Refused,
        _ => Meaning::Lost,
    }
}

/// In words.
pub(super) fn text(status: &Status) -> String {
    let text = format!("{}: {}", status.code(), status.message());
    std::error::Error::source(status)
        .map_or_else(|| text.clone(), |source| format!("{text}: {}", causes(source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_refused_is_known_not_to_have_happened() {
        let of = |code, text| meaning(&Status::new(code, text));
        let space = "etcdserver: mvcc: database space exceeded";
        assert_eq!(of(Code::ResourceExhausted, space), Meaning::Full);
        assert_eq!(of(Code::ResourceExhausted, "etcdserver: too many requests"), Meaning::Lost);
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(of(Code::OutOfRange, compacted), Meaning::Compacted);
        let future = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(of(Code::OutOfRange, future), Meaning::Future);
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Unknown] {
            assert_eq!(of(code, "request timed out"), Meaning::Lost);
        }
        for code in [Code::Internal, Code::Aborted, Code::DataLoss] {
            assert_eq!(of(code, ""), Meaning::Lost);
        }
        assert_eq!(of(Code::InvalidArgument, "duplicate key"), Meaning::Refused);
        assert_eq!(of(Code::PermissionDenied, ""), Meaning::Refused);
    }
}
