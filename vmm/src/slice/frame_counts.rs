//! How many frames with state of the guest went to each other slice and came from it.
//!
//! ```text
//!   Channels::send --sent + 1--> engine --> transport --> engine --> Dispatcher: taken to its place --received + 1
//! ```
//! A frame that has left one slice and has not come to the other is in the saved form of neither. At a cut the numbers of
//! the two are equal, or something is on its way. Frames of one slice to another arrive in order, so equal numbers mean the
//! same frames. Memory messages are counted by the memory engine, in the form of its node.
//!
//! Frames of delegated devices (class bulk) are not counted. What must not be lost of them, requests and answers of disks,
//! is waited for (`Exchange::wait_until_idle`); what is left are packets, which a network may lose, and permissions
//! to send more of them, which a restored device gives anew.

use migrate::Invalid;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{SLICES_MAX, SliceId};

/// More frames than a slice can send in a million years.
const COUNT_MAX: u64 = 1 << 56;

/// Frames with state of the guest between this slice and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerFrames {
    /// The other.
    pub(crate) peer: SliceId,
    /// Frames to it.
    pub(crate) sent: u64,
    /// Frames from it that were taken to their places.
    pub(crate) received: u64,
}

#[derive(Debug, Default)]
struct Pair {
    sent: AtomicU64,
    received: AtomicU64,
}

/// The counts of one slice, with all that are or can come: a number is given out once.
#[derive(Debug)]
pub(crate) struct FrameCounts([Pair; SLICES_MAX as usize]);

impl Default for FrameCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Pair::default()))
    }
}

impl FrameCounts {
    fn pair(&self, peer: SliceId) -> Option<&Pair> {
        self.0.get(usize::from(peer.0))
    }

    /// A frame is about to leave.
    pub(super) fn sent(&self, to: SliceId) {
        if let Some(pair) = self.pair(to) {
            pair.sent.fetch_add(1, Ordering::Release);
        }
    }

    /// A frame was taken to its place.
    pub(super) fn received(&self, from: SliceId) {
        if let Some(pair) = self.pair(from) {
            pair.received.fetch_add(1, Ordering::Release);
        }
    }

    /// The counts of these peers now, ascending.
    pub(crate) fn save(&self, of: impl Fn(SliceId) -> bool) -> Vec<PeerFrames> {
        let counts = |(peer, pair): (SliceId, &Pair)| PeerFrames {
            peer,
            sent: pair.sent.load(Ordering::Acquire),
            received: pair.received.load(Ordering::Acquire),
        };
        let all = (0..).map(SliceId).zip(&self.0);
        all.filter(|(peer, _)| of(*peer)).map(counts).collect()
    }
}

/// Whether counts can be those of slice `local` in a VM of these members.
pub(super) fn check(
    frames: &[PeerFrames],
    local: SliceId,
    members: &[SliceId],
) -> Result<(), Invalid> {
    let others = members.iter().filter(|member| **member != local);
    let each = frames.iter().map(|counts| &counts.peer).eq(others);
    Invalid::unless(each, "frames", "not of each other slice")?;
    let possible = |counts: &PeerFrames| counts.sent.max(counts.received) <= COUNT_MAX;
    Invalid::unless(frames.iter().all(possible), "frames", "more than a slice can send")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_for_each_peer_and_way() {
        let counts = FrameCounts::default();
        counts.sent(SliceId(1));
        counts.sent(SliceId(1));
        counts.received(SliceId(2));
        // No slice of any VM.
        counts.sent(SliceId(SLICES_MAX));
        let of = |peer, sent, received| PeerFrames { peer: SliceId(peer), sent, received };
        assert_eq!(counts.save(|peer| peer == SliceId(2)), [of(2, 0, 1)]);
        let saved = counts.save(|peer| [1, 2].contains(&peer.0));
        assert_eq!(saved, [of(1, 2, 0), of(2, 0, 1)]);
        let members = [0, 1, 2].map(SliceId);
        check(&saved, SliceId(0), &members).unwrap();
        assert!(check(&saved, SliceId(1), &members).is_err());
        assert!(check(&[of(1, COUNT_MAX + 1, 0), saved[1]], SliceId(0), &members).is_err());
    }
}
