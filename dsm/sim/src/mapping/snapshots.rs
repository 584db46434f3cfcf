//! When snapshots are made, and what has been read of them.

use crate::simulator::random::Random;
use crossbeam_channel::Receiver;
use dsm::{SnapshotError, SnapshotReader};
use dsm_protocol::Gfn;
use dsm_protocol::saved::Here;
use std::collections::BTreeMap;

/// The most events between two snapshots.
pub(super) const EVENTS_BETWEEN: u64 = 800;
const PAGE: usize = 4096;

/// Contents of pages. Those of zeros are left out.
pub(super) type Image = BTreeMap<Gfn, Vec<u8>>;
type Protected = Receiver<Result<(), SnapshotError>>;

/// What one slice gives.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) here: Here,
    pub(super) reader: Option<SnapshotReader>,
    pub(super) pages: Image,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// None is read; the next one begins after so many events.
    Idle(u64),
    /// Engines protect memory. The moment comes after so many events, if they are done.
    Protecting(Vec<Protected>, u64),
    /// What memory was, and what the slices give of it.
    Reading(Image, Vec<Reading>),
}

/// When snapshots are made, and what has been read.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) random: Random,
    pub(super) stage: Stage,
    pub(super) done: u64,
    /// How often pages were protected again while some slice was not ready.
    pub(super) upkeep: u64,
}

impl Snapshots {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(16));
        let first = random.below(EVENTS_BETWEEN);
        Self { random, stage: Stage::Idle(first), done: 0, upkeep: 0 }
    }
}

impl Reading {
    /// Reads a little.
    pub(super) fn read(&mut self) -> Result<(), String> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let mut bytes = Vec::new();
        match reader.next(&mut bytes).map_err(|error| error.to_string())? {
            None => self.reader = None,
            Some(first) => {
                let pages = bytes.chunks_exact(PAGE).zip(first.0..);
                for (page, frame) in pages {
                    if self.pages.insert(Gfn(frame), page.to_vec()).is_some() {
                        return Err(format!("frame {frame:#x} is given twice"));
                    }
                }
            }
        }
        Ok(())
    }

    /// A page that is not what it was, or not there.
    pub(super) fn wrong(&self, image: &Image) -> Option<Gfn> {
        let zeros = vec![0; PAGE];
        let here = self.here.frames.iter().cloned().flatten().map(Gfn);
        let mut here = here.chain(self.pages.keys().copied());
        here.find(|gfn| image.get(gfn).unwrap_or(&zeros) != self.pages.get(gfn).unwrap_or(&zeros))
    }
}
