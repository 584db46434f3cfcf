//! Who connects to the socket, and who takes connections that do not speak JSON.

use super::refusal::{Reason, Refusal};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Who has connected, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// Whether that user may ask: this process's own, or root.
    pub may_ask: bool,
}

impl Caller {
    /// Who is at the other end.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn of(stream: &impl AsFd) -> io::Result<Self> {
        let uid = socket_peercred(stream)?.uid;
        Ok(Self::judged(uid.as_raw(), geteuid().as_raw()))
    }

    fn judged(uid: u32, own: u32) -> Self {
        Self { uid, may_ask: uid == own || uid == 0 }
    }

    /// Why it may not.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let uid = self.uid;
        let message =
            format!("user {uid} may not: only the user whose process this is, and root, may");
        Refusal::new(Reason::NotAllowed, message)
    }
}

/// Takes connections that speak HTTP/2.
pub trait TakesStreams: fmt::Debug + Send + Sync {
    /// Takes one; it does not wait. Of a caller who may not ask, all that is asked is refused.
    fn take(&self, stream: UnixStream, caller: Caller);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_user_and_root_may_ask() {
        let may = |uid, own| Caller::judged(uid, own).may_ask;
        assert!(may(1000, 1000) && may(0, 1000) && may(0, 0));
        assert!(!may(1000, 0) && !may(1001, 1000));
        assert_eq!(Caller::judged(7, 8).refusal().reason, Reason::NotAllowed);
    }
}
