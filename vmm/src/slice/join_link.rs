//! What passes between the threads of a slice when another one joins. `joining` does it.
//!
//! ```text
//!   a thread that has called the newcomer --put_link--> kept --take_link--> the next cut
//!   frames: Met --met--> whoever waits for all slices to have called it (`summon`)
//!   the cut --put_state--> kept --take_state--> whoever lets the newcomer begin
//! ```

use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use transport::{Membership, PeerLink};
use wire::{SLICES_MAX, SliceId};

/// What a slice says about a newcomer: that it has a link, or why it has none.
pub(super) type Met = (SliceId, Result<(), String>);

#[derive(Debug, Default)]
struct Links {
    /// To a newcomer, until a cut takes it.
    link: Option<PeerLink>,
    /// On the coordinator: who waits for answers to which summons.
    waiting: Option<(u64, Sender<Met>)>,
    /// The number of the last one. Newcomers that failed leave theirs to others, so that does not tell them apart.
    summons: u64,
    /// On the coordinator: what the newcomer is to begin with.
    state: Option<Vec<u8>>,
    lease: Duration,
}

/// The part of a slice in others joining.
#[derive(Debug)]
pub(super) struct Joining {
    /// None in a VM that nobody can join. Held while somebody is met: never taken on the engine's thread.
    membership: Mutex<Option<Membership>>,
    links: Mutex<Links>,
    /// This slice is calling a newcomer.
    pub(super) calls: AtomicBool,
}

impl Default for Joining {
    fn default() -> Self {
        Self {
            membership: Mutex::new(None),
            links: Mutex::default(),
            calls: AtomicBool::new(false),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Joining {
    /// From now on others can join. A peer that is silent for so long is lost.
    pub(super) fn set_membership(&self, membership: Membership, lease: Duration) {
        *lock(&self.membership) = Some(membership);
        lock(&self.links).lease = lease;
    }

    /// How long a peer may be silent.
    pub(super) fn lease(&self) -> Duration {
        lock(&self.links).lease
    }

    /// What this slice needs when another one joins, for as long as it is held.
    pub(super) fn membership(&self) -> MutexGuard<'_, Option<Membership>> {
        lock(&self.membership)
    }

    /// There is a link to a newcomer. One to another that never joined is closed.
    pub(super) fn put_link(&self, link: PeerLink) {
        let former = lock(&self.links).link.replace(link);
        // It may take long, and the engine's thread takes the lock.
        drop(former);
    }

    /// The link to this newcomer.
    pub(super) fn take_link(&self, slice: SliceId) -> Option<PeerLink> {
        lock(&self.links).link.take_if(|link| link.peer() == slice)
    }

    /// The number of the next summons, and where those are told of that have answered it.
    pub(super) fn summon(&self) -> (u64, Receiver<Met>) {
        let (waiting, met) = bounded(usize::from(SLICES_MAX));
        let mut links = lock(&self.links);
        links.summons += 1;
        links.waiting = Some((links.summons, waiting));
        (links.summons, met)
    }

    /// Nobody waits any more.
    pub(super) fn wait_for_nobody(&self) {
        lock(&self.links).waiting = None;
    }

    /// A slice has answered a summons. Nobody may wait for it any more.
    pub(super) fn met(&self, from: SliceId, summons: u64, failure: &str) {
        let links = lock(&self.links);
        if let Some((_, waiting)) = links.waiting.as_ref().filter(|(of, _)| *of == summons) {
            // It may go to a terminal, and who wrote it is not known.
            let why = failure.replace(char::is_control, " ");
            let result = if why.is_empty() { Ok(()) } else { Err(why) };
            let _ = waiting.try_send((from, result));
        }
    }

    /// What a newcomer is to begin with is known.
    pub(super) fn put_state(&self, state: Vec<u8>) {
        lock(&self.links).state = Some(state);
    }

    pub(super) fn take_state(&self) -> Option<Vec<u8>> {
        lock(&self.links).state.take()
    }

    /// The VM is over. Its lease is not: others are there until this slice has ended.
    pub(super) fn end(&self) {
        let mut links = lock(&self.links);
        let ended = Links { lease: links.lease, ..Links::default() };
        let former = std::mem::replace(&mut *links, ended);
        drop(links);
        // As above.
        drop(former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_outlives_what_joining_has() {
        let joining = Joining::default();
        lock(&joining.links).lease = Duration::from_secs(3);
        joining.put_state(vec![1]);
        joining.end();
        assert_eq!((joining.take_state(), joining.lease()), (None, Duration::from_secs(3)));
    }

    #[test]
    fn answer_to_another_summons_is_not_heard() {
        let joining = Joining::default();
        joining.met(SliceId(1), 1, "");
        let (before, _) = joining.summon();
        let (summons, met) = joining.summon();
        joining.met(SliceId(1), before, "");
        joining.met(SliceId(1), summons, "");
        joining.met(SliceId(2), summons, "nobody\x1blistens");
        joining.wait_for_nobody();
        joining.met(SliceId(2), summons, "");
        let heard: Vec<_> = met.iter().collect();
        assert_eq!(heard, [(SliceId(1), Ok(())), (SliceId(2), Err("nobody listens".into()))]);
    }

    #[test]
    fn state_is_taken_once_and_not_after_the_end() {
        let joining = Joining::default();
        joining.put_state(vec![1]);
        assert_eq!((joining.take_state(), joining.take_state()), (Some(vec![1]), None));
        joining.put_state(vec![2]);
        joining.end();
        assert_eq!(joining.take_state(), None);
    }
}
