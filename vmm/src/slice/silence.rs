//! Since when a slice has heard nothing of the others without which its VM cannot go on.

use super::channels::Channels;
use std::collections::BTreeMap;
use wire::SliceId;

/// When each peer was last heard. What comes in a look has arrived since the look before that one, at the earliest: so it counts as heard
/// then. All times are of [`Fence::now`](devices::Fence::now).
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When the last look began.
    began: u64,
    /// When the one before it began.
    before: u64,
    heard: BTreeMap<SliceId, u64>,
}

impl Silence {
    /// A look begins.
    pub(super) fn looks(&mut self, now: u64) {
        self.before = if self.began == 0 { now } else { self.began };
        self.began = now;
    }

    /// Something came of this slice.
    pub(super) fn heard(&mut self, peer: SliceId) {
        self.heard.insert(peer, self.before);
    }

    /// Since when not all of them have said something: all members but bystanders. One that was not there before counts as
    /// heard: it has just come to be a member.
    pub(super) fn since(&mut self, channels: &Channels) -> u64 {
        let mut since = self.began;
        for peer in channels.placement.load().members() {
            if *peer != channels.local() && !channels.bystanders.contains(peer) {
                since = since.min(*self.heard.entry(*peer).or_insert(self.began));
            }
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::tests::channels;

    #[test]
    fn silence_of_the_quietest_counts_from_the_look_before_its_last_words() {
        let (channels, _told) = channels(SliceId(0));
        let mut silence = Silence::default();
        let mut look = |now, heard: &[u16]| {
            silence.looks(now);
            heard.iter().for_each(|peer| silence.heard(SliceId(*peer)));
            silence.since(&channels)
        };
        assert_eq!(look(10, &[]), 10, "they have just come to be members");
        assert_eq!(look(20, &[1]), 10);
        assert_eq!(look(30, &[1, 2]), 20);
        assert_eq!(look(40, &[1]), 20);
        assert_eq!(look(50, &[2]), 30);
        // One that is no member decides nothing.
        assert_eq!(look(60, &[1, 2, 7]), 50);
    }
}
