//! Numbers of what goes on, and time.

/// A call, of one leader. Later ones have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Somebody who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// When something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Time {
    /// Milliseconds of a clock that nobody sets.
    pub ms: u64,
    /// Seconds since 1970, for people.
    pub unix: u64,
}
