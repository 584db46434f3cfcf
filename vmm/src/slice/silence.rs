//! Since when a slice has heard nothing of the others without which its VM cannot go on.

use super::channels::Channels;
use std::collections::BTreeMap;
use wire::{Epoch, SliceId};

/// When each peer was there at the latest that is known: it has sent back what it was sent then. All times are of
/// [`Fence::now`](devices::Fence::now).
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// When the last look began.
    began: u64,
    /// When the one before it began.
    before: u64,
    heard: BTreeMap<SliceId, u64>,
    /// Somebody was heard since it was last worked out.
    is_new: bool,
    /// The placement with which it was.
    epoch: Option<Epoch>,
}

impl Silence {
    /// A look begins.
    pub(super) fn looks(&mut self, now: u64) {
        self.before = if self.began == 0 { now } else { self.began };
        self.began = now;
    }

    /// This slice was there at that time.
    pub(super) fn heard(&mut self, peer: SliceId, at: u64) {
        self.heard.insert(peer, at);
        self.is_new = true;
    }

    /// Since when not all of them were there: all members but bystanders. One that was not a member before has become one since the
    /// look before, and was there then. None if nothing is new: this is asked at each look of the engine.
    pub(super) fn since(&mut self, channels: &Channels) -> Option<u64> {
        let placement = channels.placement.load();
        let is_same = self.epoch.replace(placement.epoch()) == Some(placement.epoch());
        if !std::mem::take(&mut self.is_new) && is_same {
            return None;
        }
        self.heard.retain(|peer, _| placement.is_member(*peer));
        let mut since = self.began;
        for peer in placement.members() {
            if *peer != channels.local() && !channels.bystanders.contains(peer) {
                since = since.min(*self.heard.entry(*peer).or_insert(self.before));
            }
        }
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::tests::channels_among;
    use migrate::Change;

    #[test]
    fn silence_of_the_quietest_counts() {
        let (channels, _told) = channels_among(SliceId(0), &[]);
        let mut silence = Silence::default();
        let mut look = |now, heard: &[(u16, u64)]| {
            silence.looks(now);
            heard.iter().for_each(|(peer, at)| silence.heard(SliceId(*peer), *at));
            silence.since(&channels)
        };
        assert_eq!(look(10, &[]), Some(10), "they have just come to be members");
        assert_eq!(look(20, &[]), None);
        assert_eq!(look(30, &[(1, 15)]), Some(10));
        assert_eq!(look(40, &[(1, 25), (2, 22)]), Some(22));
        assert_eq!(look(50, &[(1, 45)]), Some(22));
        // One that is no member decides nothing.
        assert_eq!(look(60, &[(1, 51), (2, 55), (7, 1)]), Some(51));
        assert_eq!(look(70, &[]), None);
    }

    #[test]
    fn who_has_left_or_has_devices_only_is_not_waited_for() {
        let (channels, _told) = channels_among(SliceId(0), &[SliceId(2)]);
        let mut silence = Silence::default();
        silence.looks(10);
        silence.heard(SliceId(1), 5);
        assert_eq!(silence.since(&channels), Some(5));
        let advance = |change: Change| {
            let change = [change];
            let next = channels.placement.load().next(&change).unwrap();
            channels.owner.advance(&change, next.epoch()).unwrap();
        };
        advance(Change::Leave(SliceId(1)));
        silence.looks(20);
        assert_eq!(silence.since(&channels), Some(20), "nobody is left");
        // Another slice of its number: what was heard before is not of it.
        silence.heard(SliceId(1), 15);
        silence.looks(30);
        advance(Change::Join(SliceId(1)));
        silence.looks(40);
        assert_eq!(silence.since(&channels), Some(15), "it was heard when it was linked");
    }
}
