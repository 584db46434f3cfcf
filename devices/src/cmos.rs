//! The CMOS clock (MC146818) at ports 0x70 and 0x71: real wall time in UTC, BCD, 24 hours.
//!
//! It is never in the middle of an update, so a guest that waits for the end of one does not
//! wait. It cannot be set and raises no interrupts; the other bytes are plain memory.

use crate::byte_string;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// Index of the century byte, which the FADT names.
pub(crate) const CENTURY: u8 = 0x32;

/// Bytes behind the index register.
const MEMORY_BYTES: usize = 128;

/// Index register and the battery-backed bytes.
#[derive(Debug)]
pub(crate) struct Cmos {
    index: u8,
    bytes: [u8; MEMORY_BYTES],
}

impl Default for Cmos {
    fn default() -> Self {
        Self { index: 0, bytes: [0; MEMORY_BYTES] }
    }
}

impl Cmos {
    /// Writes port 0x70 (`offset` 0) or 0x71 (`offset` 1).
    pub(crate) fn write(&mut self, offset: u16, value: u8) {
        if offset == 0 {
            self.index = value & 0x7f;
        } else {
            self.bytes[usize::from(self.index)] = value;
        }
    }

    /// Reads port 0x70 or 0x71 now.
    pub(crate) fn read(&self, offset: u16) -> u8 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.read_at(offset, now.as_secs())
    }

    /// Reads with the clock at this Unix time in seconds.
    fn read_at(&self, offset: u16, unix: u64) -> u8 {
        if offset == 0 {
            return self.index;
        }
        let date = Date::from_unix(unix);
        match self.index {
            0x00 => bcd(unix % 60),
            0x02 => bcd(unix / 60 % 60),
            0x04 => bcd(unix / 3600 % 24),
            // 1 January 1970 was a Thursday, day 5 of a week that starts on Sunday with day 1.
            0x06 => bcd((unix / 86_400 + 4) % 7 + 1),
            0x07 => bcd(date.day),
            0x08 => bcd(date.month),
            0x09 => bcd(date.year % 100),
            // Status A: 32.768 kHz divider, no update in progress.
            0x0a => 0x26,
            // Status B: 24 hours, BCD.
            0x0b => 0x02,
            // Status C: no interrupt. Status D: memory and time are valid.
            0x0c => 0x00,
            0x0d => 0x80,
            CENTURY => bcd(date.year / 100),
            other => self.bytes[usize::from(other)],
        }
    }
}

fn bcd(value: u64) -> u8 {
    let value = u8::try_from(value % 100).unwrap_or(0);
    value / 10 * 16 + value % 10
}

/// A civil date in the proleptic Gregorian calendar.
#[derive(Debug, PartialEq, Eq)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// Counts in years that start on 1 March, so that the leap day is the last of its year.
    fn from_unix(unix: u64) -> Self {
        // Days since 1 March of year 0.
        let days = unix / 86_400 + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self { year, month, day }
    }
}

/// Index register and memory. The time is the host's and not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CmosState {
    /// Index register, 0 to 127.
    pub index: u8,
    /// What was written behind each index, 128 bytes.
    #[serde(with = "byte_string")]
    pub memory: Vec<u8>,
}

impl SavedState for CmosState {
    const NAME: &'static str = "cmos";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = MEMORY_BYTES + 32;

    fn check(&self) -> Result<(), Invalid> {
        let index = usize::from(self.index) < MEMORY_BYTES;
        Invalid::unless(index, "index", "beyond the memory")?;
        Invalid::unless(self.memory.len() == MEMORY_BYTES, "memory", "not 128 bytes")
    }
}

impl Saved for Cmos {
    type State = CmosState;

    fn save(&self) -> CmosState {
        CmosState { index: self.index, memory: self.bytes.to_vec() }
    }

    fn restore(&mut self, state: CmosState) -> Result<(), Invalid> {
        state.check()?;
        let bytes = state.memory.try_into();
        let bytes = bytes.map_err(|_| Invalid::new("memory", "not 128 bytes"))?;
        *self = Self { index: state.index, bytes };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use proptest::prelude::*;

    fn read(index: u8, unix: u64) -> u8 {
        let mut cmos = Cmos::default();
        cmos.write(0, index);
        cmos.read_at(1, unix)
    }

    #[test]
    fn date_known_days_are_right() {
        let date = |unix| {
            let date = Date::from_unix(unix);
            (date.year, date.month, date.day)
        };
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(951_782_400), (2000, 2, 29));
        assert_eq!(date(951_868_800), (2000, 3, 1));
        assert_eq!(date(4_107_542_399), (2100, 2, 28));
        assert_eq!(date(4_107_542_400), (2100, 3, 1));
    }

    #[test]
    fn date_every_day_of_four_centuries_follows_the_last() {
        let mut last = Date::from_unix(0);
        for day in 1..146_097 {
            let date = Date::from_unix(day * 86_400);
            let next_day = date.day == last.day + 1 && date.month == last.month;
            let next_month = date.day == 1 && last.day >= 28 && date.month == last.month + 1;
            let next_year =
                (date.day, date.month, last.month) == (1, 1, 12) && date.year == last.year + 1;
            assert!(next_day || next_month || next_year, "{last:?} then {date:?}");
            last = date;
        }
    }

    #[test]
    fn clock_reads_bcd_in_24_hours() {
        // 21 November 2026, 23:59:58, a Saturday.
        let unix = 1_795_305_598;
        let registers = [0x00, 0x02, 0x04, 0x06, 0x07, 0x08, 0x09, CENTURY];
        let expected = [0x58, 0x59, 0x23, 0x07, 0x21, 0x11, 0x26, 0x20];
        assert_eq!(registers.map(|index| read(index, unix)), expected);
        assert_eq!([0x0a, 0x0b, 0x0c, 0x0d].map(|index| read(index, unix)), [0x26, 2, 0, 0x80]);
    }

    #[test]
    fn memory_byte_reads_back() {
        let mut cmos = Cmos::default();
        cmos.write(0, 0x8f);
        cmos.write(1, 0x0a);
        assert_eq!((cmos.read(0), cmos.read(1)), (0x0f, 0x0a));
    }

    #[test]
    fn memory_of_another_length_and_an_index_beyond_it_are_refused() {
        let mut cmos = Cmos::default();
        let good = cmos.save();
        for bytes in [0, MEMORY_BYTES - 1, MEMORY_BYTES + 1] {
            cmos.restore(CmosState { memory: vec![0; bytes], ..good.clone() }).unwrap_err();
        }
        cmos.restore(CmosState { index: 0x80, ..good.clone() }).unwrap_err();
        assert_eq!(cmos.save(), good);
        damage(&good, 0x81, |state| {
            let mut fresh = Cmos::default();
            fresh.restore(state).unwrap();
            fresh.write(1, 1);
        });
    }

    proptest! {
        #[test]
        fn restored_memory_reads_as_the_saved_one(
            writes in prop::collection::vec((0_u16..2, any::<u8>()), 0..60),
            reads in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let (mut one, mut two) = (Cmos::default(), Cmos::default());
            for (port, value) in writes {
                one.write(port, value);
            }
            bring_over(&one, &mut two);
            let at = 1_795_305_598;
            prop_assert_eq!(one.read_at(1, at), two.read_at(1, at));
            for index in reads {
                one.write(0, index);
                two.write(0, index);
                prop_assert_eq!(one.read_at(1, at), two.read_at(1, at));
            }
        }
    }
}
