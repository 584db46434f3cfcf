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
    /// Also of slices that are linked and not members yet. What an earlier slice of a number has sent back is older than anything of the
    /// next one's.
    heard: BTreeMap<SliceId, u64>,
    /// Somebody was heard since it was last worked out.
    is_new: bool,
    /// The placement with which it was.
    epoch: Option<Epoch>,
}

impl Silence {
    /// A look begins.
    pub(super) fn looks(&mut self, now: u64) {
        self.began = now;
    }

    /// This slice was there at that time.
    pub(super) fn heard(&mut self, peer: SliceId, at: u64) {
        self.heard.insert(peer, at);
        self.is_new = true;
    }

    /// Since when not all of them were there: all members but bystanders. Of one that has sent nothing back nothing is known. If there is
    /// none but this slice, since now. None if nothing is new: this is asked at each look of the engine.
    pub(super) fn since(&mut self, channels: &Channels) -> Option<u64> {
        let placement = channels.placement.load();
        let others = placement.members().iter();
        let mut others = others
            .filter(|peer| **peer != channels.local() && !channels.bystanders.contains(peer))
            .peekable();
        let is_same = self.epoch.replace(placement.epoch()) == Some(placement.epoch());
        if others.peek().is_none() {
            return Some(self.began);
        }
        if !std::mem::take(&mut self.is_new) && is_same {
            return None;
        }
        let last = |peer: &SliceId| self.heard.get(peer).copied().unwrap_or(0);
        others.map(last).min()
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
        assert_eq!(look(10, &[]), Some(0), "nobody has sent anything back");
        assert_eq!(look(20, &[]), None);
        assert_eq!(look(30, &[(1, 15)]), Some(0));
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
        for now in [20, 30] {
            silence.looks(now);
            assert_eq!(
                silence.since(&channels),
                Some(now),
                "nobody else has anything of the guest"
            );
        }
        // Another slice of its number, which was linked before.
        advance(Change::Join(SliceId(1)));
        silence.looks(40);
        assert_eq!(silence.since(&channels), Some(5), "of this one nothing is known");
        silence.heard(SliceId(1), 35);
        assert_eq!(silence.since(&channels), Some(35));
    }
}
