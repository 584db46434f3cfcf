//! Pages of a chunk whose home moves: what each slice keeps until the next home says that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wire::{Asked, Epoch, Gfn, HOME_MOVE_MAX, Message, SliceId};

/// A request of another slice that is for the next home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PassedOn {
    pub(crate) gfn: Gfn,
    pub(crate) requester: SliceId,
    pub(crate) asked: Asked,
}

/// Pages that this home is giving to another slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leaving {
    pub(crate) frames: Range<u64>,
    pub(crate) to: SliceId,
    pub(crate) placement: Epoch,
    /// Slices that may still ask this home, a bit each. None while replicas are made or ended, and all is served but
    /// no replica begun.
    pub(crate) asking: Option<u64>,
    /// What was asked since nothing is served any more.
    pub(crate) queue: Vec<PassedOn>,
}

/// Pages about which nothing may be asked now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Away {
    pub(crate) pages: u16,
    pub(crate) to: SliceId,
    /// What this slice has to say to the next home.
    pub(crate) held: Vec<Message>,
    /// What others had asked the former home for, if this slice is the next one.
    pub(crate) incoming: Vec<PassedOn>,
}

/// The moves of homes that a slice has a part in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HomeMoves {
    pub(crate) leaving: Option<Leaving>,
    /// By the first frame.
    pub(crate) away: BTreeMap<u64, Away>,
    /// Chunks that this slice was home of: late runs may still come for them.
    former: BTreeSet<u64>,
    /// The epoch of the newest placement that a move was asked for by.
    pub(crate) placement: Epoch,
}

impl HomeMoves {
    /// True where nothing moves.
    pub(crate) fn is_quiet(&self) -> bool {
        self.leaving.is_none() && self.away.is_empty()
    }

    /// A page whose home is on its way.
    pub(crate) fn first(&self) -> Option<Gfn> {
        let leaving = self.leaving.as_ref().map(|leaving| leaving.frames.start);
        leaving.or_else(|| self.away.keys().next().copied()).map(Gfn)
    }

    pub(crate) fn leaving(&mut self, gfn: Gfn) -> Option<&mut Leaving> {
        self.leaving.as_mut().filter(|leaving| leaving.frames.contains(&gfn.0))
    }

    /// True while no replica of the page may be begun.
    pub(crate) fn is_leaving(&self, gfn: Gfn) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.frames.contains(&gfn.0))
    }

    /// True while this home serves no request for the page.
    pub(crate) fn is_closed(&self, gfn: Gfn) -> bool {
        self.is_leaving(gfn)
            && self.leaving.as_ref().is_some_and(|leaving| leaving.asking.is_some())
    }

    /// The pages with this one about which nothing may be asked now.
    pub(crate) fn away(&mut self, gfn: Gfn) -> Option<&mut Away> {
        if self.away.is_empty() {
            return None;
        }
        let (first, away) = self.away.range_mut(..=gfn.0).next_back()?;
        (gfn.0 - first < u64::from(away.pages)).then_some(away)
    }

    pub(crate) fn is_away(&self, gfn: Gfn) -> bool {
        let last = self.away.range(..=gfn.0).next_back();
        last.is_some_and(|(first, away)| gfn.0 - first < u64::from(away.pages))
    }

    pub(crate) fn add_former(&mut self, gfn: Gfn) {
        self.former.insert(gfn.0 / u64::from(HOME_MOVE_MAX));
    }

    /// True for pages of a chunk that this slice was home of.
    pub(crate) fn is_former(&self, gfn: Gfn) -> bool {
        self.former.contains(&(gfn.0 / u64::from(HOME_MOVE_MAX)))
    }
}
