//! The saved form of an MSI-X table.

use super::{CONTROL_ENABLE, CONTROL_FUNCTION_MASK, ENTRY_MASKED, Entry, MsixTable};
use crate::msix::VECTORS_MAX;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Entries and control register (PCI 6.8.2). Routes follow from these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsixTableState {
    /// MSI-X is enabled (bit 15 of message control).
    pub enabled: bool,
    /// All entries are masked (bit 14 of message control).
    pub function_masked: bool,
    /// The entries, one for each queue and one for the configuration.
    pub entries: Vec<MsixEntryState>,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsixEntryState {
    /// Message address, a multiple of 4.
    pub address: u64,
    /// Message data.
    pub data: u32,
    /// It is masked (bit 0 of vector control).
    pub masked: bool,
}

impl SavedState for MsixTableState {
    const NAME: &'static str = "msix table";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 38 * VECTORS_MAX + 64;

    fn check(&self) -> Result<(), Invalid> {
        let count = (1..=VECTORS_MAX).contains(&self.entries.len());
        Invalid::unless(count, "entries", "none, or more than a table has")?;
        let aligned = self.entries.iter().all(|entry| entry.address.is_multiple_of(4));
        Invalid::unless(aligned, "entries", "an address that is no multiple of 4")
    }
}

impl Saved for MsixTable {
    type State = MsixTableState;

    fn save(&self) -> MsixTableState {
        let entries = self.entries.iter().map(|[low, high, data, control]| MsixEntryState {
            address: u64::from(*high) << 32 | u64::from(*low),
            data: *data,
            masked: control & ENTRY_MASKED != 0,
        });
        MsixTableState {
            enabled: self.control & CONTROL_ENABLE != 0,
            function_masked: self.control & CONTROL_FUNCTION_MASK != 0,
            entries: entries.collect(),
        }
    }

    fn restore(&mut self, state: MsixTableState) -> Result<(), Invalid> {
        state.check()?;
        let same = state.entries.len() == self.entries.len();
        Invalid::unless(same, "entries", "not as many as this device has")?;
        self.entries = state.entries.iter().map(entry).collect();
        self.control = state.control();
        Ok(())
    }
}

impl MsixTableState {
    /// The bits of the message control register that the guest has set.
    pub(crate) fn control(&self) -> u16 {
        let enabled = if self.enabled { CONTROL_ENABLE } else { 0 };
        enabled | if self.function_masked { CONTROL_FUNCTION_MASK } else { 0 }
    }
}

fn entry(saved: &MsixEntryState) -> Entry {
    let [a, b, c, d, e, f, g, h] = saved.address.to_le_bytes();
    let (low, high) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    [low, high, saved.data, if saved.masked { ENTRY_MASKED } else { 0 }]
}

#[cfg(test)]
mod tests {
    use super::super::ENTRY_BYTES;
    use super::*;
    use crate::msix::MsixVector;
    use crate::saved::testing::{bring_over, damage, through_bytes};
    use proptest::prelude::*;

    const VECTORS: u16 = 3;

    fn write() -> impl Strategy<Value = (usize, u64, u16)> {
        let values = prop_oneof![Just(0xfee0_1000_u64), 0_u64..0x200, any::<u64>()];
        (0_usize..8, values, prop::sample::select(vec![0, 0x4000, 0x8000, 0xc000]))
    }

    fn run(table: &mut MsixTable, (place, value, control): (usize, u64, u16)) -> Vec<MsixVector> {
        if place < 6 {
            table.write(place * ENTRY_BYTES / 2, &value.to_le_bytes()).into_iter().collect()
        } else {
            table.set_control(control)
        }
    }

    proptest! {
        #[test]
        fn restored_table_goes_on_as_the_saved_one(
            before in prop::collection::vec(write(), 0..30),
            after in prop::collection::vec(write(), 0..30),
        ) {
            let (mut one, mut two) = (MsixTable::new(VECTORS), MsixTable::new(VECTORS));
            for each in before {
                run(&mut one, each);
            }
            bring_over(&one, &mut two);
            prop_assert_eq!(&one, &two);
            for each in after {
                prop_assert_eq!(run(&mut one, each), run(&mut two, each));
            }
            for vector in (0..VECTORS).map(MsixVector) {
                prop_assert_eq!(one.route(vector), two.route(vector));
            }
        }
    }

    #[test]
    fn tables_of_another_length_are_refused() {
        let mut table = MsixTable::new(VECTORS);
        for vectors in [1, 2, 4, 256] {
            table.restore(MsixTable::new(vectors).save()).unwrap_err();
        }
        let mut odd = table.save();
        odd.entries[1].address = 2;
        assert!(odd.check().is_err() && table.restore(odd).is_err());
        let none = MsixTableState { entries: Vec::new(), ..table.save() };
        assert!(none.check().is_err());
        assert_eq!(table, MsixTable::new(VECTORS), "nothing has changed");
    }

    #[test]
    fn largest_table_fits_its_bound_and_damaged_bytes_do_no_harm() {
        let mut most = MsixTable::new(256).save();
        let entry = MsixEntryState { address: !3, data: u32::MAX, masked: false };
        most.entries.fill(entry);
        through_bytes(&most);
        damage(&MsixTable::new(2).save(), 0x02, |state| {
            drop(MsixTable::new(2).restore(state));
        });
    }
}
