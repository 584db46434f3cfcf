//! What a disk contains at some places, so that two hosts can tell whether they have the same one.
//!
//! Equal samples do not prove that two images are one. But of places that a guest has written last, a copy made before
//! shows something else, and so does a cache that is behind.

use super::{Disk, DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Most sectors that are read at a place.
const SECTORS_MAX: u32 = 64;
/// Places over all of a disk, first and last among them.
const SPREAD: u64 = 16;
/// Most places that are looked at.
pub const PLACES_MAX: usize = 64;

/// Sectors of a disk, at most 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place(u64, u32);

impl Place {
    /// From this sector on so many, or as many as a place has.
    #[must_use]
    pub fn new(sector: u64, sectors: u64) -> Self {
        Self(sector, u32::try_from(sectors).map_or(SECTORS_MAX, |count| count.min(SECTORS_MAX)))
    }

    /// Whether some of these sectors are of the place.
    pub(super) fn touches(self, sector: u64, sectors: u64) -> bool {
        sector < self.0.saturating_add(self.1.into()) && self.0 < sector.saturating_add(sectors)
    }

    /// Places over all of a disk.
    #[must_use]
    pub fn spread(shape: &DiskShape) -> Vec<Self> {
        let count = shape.sectors.min(SECTORS_MAX.into());
        let last = shape.sectors - count;
        (0..SPREAD).map(|number| Self::new(last / (SPREAD - 1) * number, count)).collect()
    }
}

/// Why a disk has no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SampleError {
    /// A place is outside the disk, or cannot be read.
    #[error("read the disk at sector {0}")]
    Unreadable(u64),
    /// Too many places.
    #[error("read the disk at {0} places, which are too many")]
    Places(usize),
    /// No answer in time.
    #[error("read the disk: no answer within {0:?}")]
    Late(Duration),
}

/// A SHA-256 over what is at these places now.
///
/// # Errors
/// They cannot be read, or not within this time.
pub fn sample(
    disk: &dyn Disk,
    places: &[Place],
    within: Duration,
) -> Result<[u8; 32], SampleError> {
    if places.len() > PLACES_MAX {
        return Err(SampleError::Places(places.len()));
    }
    let deadline = Instant::now() + within;
    let mut sum = Sha256::new();
    for Place(sector, sectors) in places {
        let bytes = u32::try_from(u64::from(*sectors) * SECTOR_BYTES).unwrap_or(u32::MAX);
        let (told, answer) = channel();
        let request = DiskRequest::Read { sector: *sector, bytes };
        // Who has waited too long has gone.
        disk.submit(request, Box::new(move |reply| drop(told.send(reply))));
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(DiskReply::Done(data)) if data.len() == bytes as usize => sum.update(&data),
            Err(RecvTimeoutError::Timeout) => return Err(SampleError::Late(within)),
            _ => return Err(SampleError::Unreadable(*sector)),
        }
    }
    Ok(sum.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back_end::MemoryDisk;

    const LONG: Duration = Duration::from_secs(60);

    fn disk(sectors: u64, written: &[u64]) -> MemoryDisk {
        let disk = MemoryDisk::new(sectors);
        for sector in written {
            disk.submit(
                DiskRequest::Write { sector: *sector, data: vec![7; 512] },
                Box::new(|_| {}),
            );
        }
        disk
    }

    #[test]
    fn places_are_inside_a_disk_of_any_size_from_its_first_to_its_last_sector() {
        for sectors in [1, 63, 64, 65, 1000, 1 << 50] {
            let shape = DiskShape { sectors, ..disk(1, &[]).shape() };
            let places = Place::spread(&shape);
            for Place(sector, count) in &places {
                assert!(*count > 0 && sector + u64::from(*count) <= sectors, "{sectors}");
            }
            assert_eq!(places[0].0, 0);
            let Place(sector, count) = places[places.len() - 1];
            assert!(sector + u64::from(count) + SPREAD > sectors, "{sectors}");
        }
    }

    #[test]
    fn disks_that_differ_where_one_looks_have_other_samples() {
        let places = [Place::new(3, 1), Place::new(90, 2)];
        let of = |written: &[u64]| sample(&disk(100, written), &places, LONG).unwrap();
        assert_eq!(of(&[]), of(&[4]));
        assert_ne!(of(&[]), of(&[3]));
        assert_ne!(of(&[91]), of(&[90]));
    }

    #[test]
    fn what_a_bad_peer_would_have_read_is_refused() {
        let outside = [Place::new(99, 2)];
        assert_eq!(sample(&disk(100, &[]), &outside, LONG), Err(SampleError::Unreadable(99)));
        assert_eq!(
            sample(&disk(100, &[]), &[Place(u64::MAX, u32::MAX)], LONG),
            Err(SampleError::Unreadable(u64::MAX))
        );
        let many = [Place::new(0, 1); PLACES_MAX + 1];
        assert_eq!(sample(&disk(100, &[]), &many, LONG), Err(SampleError::Places(65)));
    }
}
