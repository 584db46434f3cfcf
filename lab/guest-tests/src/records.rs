//! Records on a disk that tell, after the machine was killed, whether anything was lost.
//!
//! ```text
//!   batch b: records b*8 .. b*8+8, in any order --> flush --> acknowledged --> batch b+1
//! ```
//! A record says to the last byte which it is. A batch is begun when the flush behind the one before has
//! returned, so a record on the disk proves that all earlier batches must be there as well, whether or
//! not somebody has heard the acknowledgement.

use std::fmt;

/// CPU `n` of a guest that echoes datagrams, which are records, listens on `ECHO_PORT + n`.
pub const ECHO_PORT: u16 = 7700;
/// Bytes of a record: a page, so that each is a write of its own.
pub const RECORD_BYTES: usize = 4096;
/// Places for records; a record takes the place of one long before it.
pub const SLOTS: u64 = 256;
/// Records between two flushes.
pub const BATCH: u64 = 8;
/// Bytes of all places.
pub const REGION_BYTES: usize = RECORD_BYTES * 256;
/// Batches that may be half there: the newest seen, and the one behind it.
const OPEN: u64 = 2 * BATCH;

const MAGIC: u64 = u64::from_le_bytes(*b"TESSREC1");
const WORDS: usize = RECORD_BYTES / 8;

/// Who writes, and in which life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Different in each life.
    pub run: u64,
    /// The writer.
    pub number: u64,
}

impl Writer {
    /// The bytes of a record.
    #[must_use]
    pub fn record(self, number: u64) -> Vec<u8> {
        let mut words = vec![MAGIC, self.run, self.number, number];
        let mut state = self.run ^ self.number.rotate_left(20) ^ number.rotate_left(40) ^ MAGIC;
        while words.len() < WORDS {
            // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            words.push(mixed ^ (mixed >> 31));
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The number of the record that these bytes are, if they are one of this writer.
    #[must_use]
    pub fn number_of(self, bytes: &[u8]) -> Option<u64> {
        let number = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        (bytes == self.record(number)).then_some(number)
    }

    /// Judges the places of a writer after the end. `acknowledged` is the last record whose flush is known
    /// to have returned.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn judge(self, region: &[u8], acknowledged: Option<u64>) -> Result<Found, Loss> {
        if region.len() != REGION_BYTES {
            return Err(Loss::Size(region.len()));
        }
        let mut newest = None;
        let mut places = vec![None; region.len() / RECORD_BYTES];
        for (place, bytes) in (0..).zip(region.chunks_exact(RECORD_BYTES)) {
            let here = |number: &u64| slot(*number) == place;
            let number = self.number_of(bytes).filter(here);
            places[place] = number;
            newest = newest.max(number);
        }
        let Some(newest) = newest else {
            return acknowledged.map_or(Ok(Found { newest: None, checked: 0 }), |number| {
                Err(Loss::All { number })
            });
        };
        // All batches before the newest that was seen are proven to be flushed.
        let proven = (newest / BATCH * BATCH).checked_sub(1);
        let kept = proven.max(acknowledged);
        let Some(kept) = kept else { return Ok(Found { newest: Some(newest), checked: 0 }) };
        let open = newest / BATCH * BATCH..newest / BATCH * BATCH + OPEN;
        let mut checked = 0;
        for number in (kept + 1).saturating_sub(SLOTS)..=kept {
            // Its place may be in use again.
            if open.contains(&(number + SLOTS)) {
                continue;
            }
            if places[slot(number)].is_none_or(|there| there < number) {
                return Err(Loss::Record { number, newest, acknowledged });
            }
            checked += 1;
        }
        Ok(Found { newest: Some(newest), checked })
    }
}

/// Bytes of what a disk writes as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// A sector that is neither old nor new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongSector {
    /// Its number in the writer's region.
    pub sector: usize,
    /// The last record that is known to be flushed.
    pub kept: Option<u64>,
}

impl std::error::Error for WrongSector {}

impl fmt::Display for WrongSector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sector, kept } = self;
        write!(f, "sector {sector} is neither old nor new (flushed: {kept:?})")
    }
}

impl Writer {
    /// Judges every sector of a region that was all zeros when this life began: it is of the last flushed
    /// record of its place, or of a record of the open batches. Gives how many are of records.
    ///
    /// # Errors
    /// The first sector that is something else.
    pub fn judge_sectors(
        self,
        region: &[u8],
        acknowledged: Option<u64>,
    ) -> Result<usize, WrongSector> {
        let places = || (0..).zip(region.chunks_exact(RECORD_BYTES));
        let seen = places().filter_map(|(place, bytes)| {
            self.number_of(bytes).filter(|number| slot(*number) == place)
        });
        let newest = seen.max();
        let proven = newest.and_then(|newest| (newest / BATCH * BATCH).checked_sub(1));
        let kept = proven.max(acknowledged);
        let next = kept.map_or(0, |kept| kept + 1);
        let first = next.saturating_sub(SLOTS);
        let mut written = 0;
        for (place, bytes) in places() {
            let candidates: Vec<_> = (first..next + OPEN)
                .filter(|number| slot(*number) == place)
                .map(|number| self.record(number))
                .collect();
            let flushed = (first..next).any(|number| slot(number) == place);
            for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
                let at = index * SECTOR_BYTES;
                let of_record =
                    candidates.iter().any(|record| &record[at..at + SECTOR_BYTES] == sector);
                let untouched = !flushed && sector.iter().all(|byte| *byte == 0);
                if !of_record && !untouched {
                    let sector = place * (RECORD_BYTES / SECTOR_BYTES) + index;
                    return Err(WrongSector { sector, kept });
                }
                written += usize::from(of_record);
            }
        }
        Ok(written)
    }
}

/// The place of a record. Records that follow each other are not neighbours, so each is a request.
#[must_use]
pub fn slot(number: u64) -> usize {
    // An odd factor reaches every place of a power of two.
    usize::try_from(number.wrapping_mul(37) % SLOTS).unwrap_or(0)
}

/// What is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The newest record.
    pub newest: Option<u64>,
    /// Records that had to be there, and are.
    pub checked: u64,
}

/// What is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is no region.
    Size(usize),
    /// There is no record at all.
    All {
        /// The last that was acknowledged.
        number: u64,
    },
    /// A record that was flushed is not there, or not as it was written.
    Record {
        /// Which.
        number: u64,
        /// The newest that is there.
        newest: u64,
        /// The last that was acknowledged.
        acknowledged: Option<u64>,
    },
}

impl std::error::Error for Loss {}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => write!(f, "{bytes} bytes are no region of records"),
            Self::All { number } => write!(f, "no record is there, {number} was acknowledged"),
            Self::Record { number, newest, acknowledged } => write!(
                f,
                "record {number} is lost, while {newest} is there (acknowledged: {acknowledged:?})"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WRITER: Writer = Writer { run: 3, number: 1 };

    fn put(region: &mut [u8], number: u64) {
        let at = slot(number) * RECORD_BYTES;
        region[at..at + RECORD_BYTES].copy_from_slice(&WRITER.record(number));
    }

    /// What is there when everything up to `end` was written.
    fn written(end: u64) -> Vec<u8> {
        let mut region = vec![0; REGION_BYTES];
        (end.saturating_sub(SLOTS)..end).for_each(|number| put(&mut region, number));
        region
    }

    #[test]
    fn record_tells_writer_life_and_number() {
        let bytes = WRITER.record(77);
        assert_eq!(WRITER.number_of(&bytes), Some(77));
        assert_eq!(Writer { run: 4, ..WRITER }.number_of(&bytes), None);
        let mut places: Vec<_> = (0..SLOTS).map(slot).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..256));
    }

    #[test]
    fn nothing_is_fine_unless_something_was_acknowledged() {
        let empty = vec![0; REGION_BYTES];
        assert_eq!(WRITER.judge(&empty, None), Ok(Found { newest: None, checked: 0 }));
        assert_eq!(WRITER.judge(&empty, Some(7)), Err(Loss::All { number: 7 }));
        assert_eq!(WRITER.judge(&empty[1..], None), Err(Loss::Size(REGION_BYTES - 1)));
    }

    #[test]
    fn batch_that_overtook_the_flush_before_it_is_found() {
        // Record 17 is of batch 2; 9 of batch 1 is missing, though nobody was told of it.
        let mut region = written(16);
        put(&mut region, 17);
        assert_eq!(WRITER.judge(&region, None).unwrap().checked, 16);
        region[slot(9) * RECORD_BYTES + 100] ^= 1;
        let loss = Loss::Record { number: 9, newest: 17, acknowledged: None };
        assert_eq!(WRITER.judge(&region, None), Err(loss));
    }

    #[test]
    fn sector_of_zeros_or_of_a_lost_record_is_found() {
        let flushed = 3 * SLOTS + BATCH;
        let whole = written(flushed);
        let told = Some(flushed - 1);
        assert_eq!(WRITER.judge_sectors(&whole, told), Ok(REGION_BYTES / SECTOR_BYTES));
        // Half a record of the open batch is old and half new.
        let mut torn = whole.clone();
        let at = slot(flushed) * RECORD_BYTES;
        torn[at..at + 1024].copy_from_slice(&WRITER.record(flushed)[..1024]);
        assert_eq!(WRITER.judge_sectors(&torn, told), Ok(REGION_BYTES / SECTOR_BYTES));
        let place = slot(flushed - 20);
        for bytes in [vec![0; 512], WRITER.record(flushed - 20 - SLOTS)[1024..1536].to_vec()] {
            let mut wrong = whole.clone();
            wrong[place * RECORD_BYTES + 1024..][..512].copy_from_slice(&bytes);
            let found = WrongSector { sector: place * 8 + 2, kept: told };
            assert_eq!(WRITER.judge_sectors(&wrong, told), Err(found));
        }
    }

    #[test]
    fn sectors_of_a_life_that_wrote_little_may_be_zeros() {
        assert_eq!(WRITER.judge_sectors(&vec![0; REGION_BYTES], None), Ok(0));
        let mut region = vec![0; REGION_BYTES];
        put(&mut region, 3);
        assert_eq!(WRITER.judge_sectors(&region, None), Ok(8));
        region[5 * RECORD_BYTES] = 1;
        assert!(WRITER.judge_sectors(&region, None).is_err());
        assert!(WRITER.judge_sectors(&vec![0; REGION_BYTES], Some(7)).is_err());
    }

    proptest! {
        /// A cut at any moment: some of the open batch are there, some old, some torn.
        #[test]
        fn any_cut_is_accepted_and_any_loss_of_flushed_records_found(
            batches in 0_u64..80, states in prop::collection::vec(0_u8..3, 8), told in any::<bool>(),
            lost in any::<prop::sample::Index>(), byte in 0..RECORD_BYTES,
        ) {
            let flushed = batches * BATCH;
            let mut region = written(flushed);
            for (number, state) in (flushed..).zip(states) {
                match state {
                    0 => put(&mut region, number),
                    1 => region[slot(number) * RECORD_BYTES + 4000] ^= 0x55,
                    _ => {}
                }
            }
            let acknowledged = flushed.checked_sub(1).filter(|_| told);
            prop_assert!(WRITER.judge(&region, acknowledged).is_ok());
            if told && batches > 0 {
                // One that no later record may be writing over.
                let safe = flushed.min(SLOTS - OPEN - BATCH);
                let number = flushed - 1 - lost.index(usize::try_from(safe).unwrap()) as u64;
                region[slot(number) * RECORD_BYTES + byte] ^= 1;
                prop_assert!(WRITER.judge(&region, acknowledged).is_err());
            }
        }
    }
}
