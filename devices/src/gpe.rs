//! General-purpose events (ACPI 6.5, 4.8.4.1): what has the guest run a method of the DSDT.
//!
//! ```text
//!             raise                          guest writes 1
//!   no status ------> its bit of the status ----------------> no status
//!                       |  while its bit is enabled: one edge of the SCI at each raise, or at the enabling
//! ```
//! The guest clears the status before it runs the method, and the method looks at everything there is. So what is raised
//! meanwhile is not missed: the method runs once more.

use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// The block: status, then enable, one byte each.
pub(crate) const GPE_PORT: u16 = 0x610;
/// Bytes of it.
pub(crate) const GPE_BYTES: u8 = 2;

/// An event. Its number is the bit in both bytes, and is in the name of its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// `_E00`: something is asked about a vCPU ([`hotplug`](crate::hotplug)).
    Vcpus = 0,
    /// `_E01`: the VM has another generation id ([`generation`](crate::generation)).
    Generation = 1,
}

impl Event {
    const ALL: [Self; 2] = [Self::Vcpus, Self::Generation];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventBlock {
    status: u8,
    enable: u8,
}

impl EventBlock {
    /// An event happens. True: the guest has enabled it, and the SCI is due.
    pub(crate) fn raise(&mut self, event: Event) -> bool {
        self.status |= event.bit();
        self.pending() & event.bit() != 0
    }

    /// What has happened and is enabled.
    fn pending(&self) -> u8 {
        self.status & self.enable
    }

    /// Reads the byte at this offset from [`GPE_PORT`].
    pub(crate) fn read(&self, offset: u16) -> u8 {
        if offset == 0 { self.status } else { self.enable }
    }

    /// Writes that byte. True: an event that had happened is enabled now, and the SCI is due.
    pub(crate) fn write(&mut self, offset: u16, value: u8) -> bool {
        let before = self.pending();
        match offset {
            // Writing one clears.
            0 => self.status &= !value,
            _ => self.enable = value,
        }
        self.pending() & !before != 0
    }
}

/// The registers of general-purpose events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventBlockState {
    /// Status register: bit 0 for vCPUs, bit 1 for the generation id.
    pub status: u8,
    /// Enable register.
    pub enable: u8,
}

impl EventBlockState {
    /// The event has happened, and the guest has not cleared it.
    pub(crate) fn has(&self, event: Event) -> bool {
        self.status & event.bit() != 0
    }
}

impl SavedState for EventBlockState {
    const NAME: &'static str = "events";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 32;

    fn check(&self) -> Result<(), Invalid> {
        let events = Event::ALL.iter().fold(0, |bits, event| bits | event.bit());
        Invalid::unless(self.status & !events == 0, "status", "events that do not exist")
    }
}

impl Saved for EventBlock {
    type State = EventBlockState;

    fn save(&self) -> EventBlockState {
        EventBlockState { status: self.status, enable: self.enable }
    }

    fn restore(&mut self, state: EventBlockState) -> Result<(), Invalid> {
        state.check()?;
        *self = Self { status: state.status, enable: state.enable };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use proptest::prelude::*;

    #[test]
    fn event_interrupts_once_it_is_enabled_and_each_time_it_is_raised() {
        let mut block = EventBlock::default();
        assert!(!block.raise(Event::Generation));
        assert_eq!([block.read(0), block.read(1)], [0b10, 0]);
        assert!(!block.write(1, 0b01));
        assert!(block.write(1, 0b11));
        assert!(!block.write(1, 0b11));
        assert!(block.raise(Event::Generation));
        // Linux clears the status alone of the event that it serves.
        assert!(!block.write(0, 0b01));
        assert_eq!(block.read(0), 0b10);
        assert!(!block.write(0, 0b10));
        assert_eq!([block.read(0), block.read(1)], [0, 0b11]);
    }

    #[test]
    fn event_interrupts_also_while_another_one_waits() {
        let mut block = EventBlock::default();
        block.write(1, 0b01);
        assert!(block.raise(Event::Vcpus));
        assert!(!block.raise(Event::Generation));
        assert!(block.write(1, 0b11));
        assert!(block.raise(Event::Generation));
        assert_eq!(block.read(0), 0b11);
    }

    #[test]
    fn events_that_do_not_exist_are_refused() {
        let mut block = EventBlock::default();
        block.raise(Event::Generation);
        let good = block.save();
        block.restore(EventBlockState { status: 4, enable: 0 }).unwrap_err();
        assert_eq!(block.save(), good);
        damage(&good, 0x11, |state| EventBlock::default().restore(state).unwrap());
    }

    proptest! {
        #[test]
        fn guest_makes_no_event_happen(
            raised in any::<bool>(),
            writes in prop::collection::vec((0_u16..2, any::<u8>()), 0..40),
        ) {
            let mut block = EventBlock::default();
            if raised {
                block.raise(Event::Generation);
            }
            for (offset, value) in writes {
                let before = block.read(0);
                let due = block.write(offset, value);
                prop_assert_eq!(block.read(0) & !before, 0);
                prop_assert!(!due || raised);
            }
        }

        #[test]
        fn restored_events_go_on_as_the_saved_ones(
            before in prop::collection::vec((0_u16..4, any::<u8>()), 0..20),
            after in prop::collection::vec((0_u16..4, any::<u8>()), 0..20),
        ) {
            let (mut one, mut two) = (EventBlock::default(), EventBlock::default());
            let step = |block: &mut EventBlock, (what, value): (u16, u8)| match what {
                0 | 1 => (block.write(what, value), block.read(what)),
                2 => (block.raise(Event::Vcpus), 0),
                _ => (block.raise(Event::Generation), 0),
            };
            for each in before {
                step(&mut one, each);
            }
            bring_over(&one, &mut two);
            for each in after {
                prop_assert_eq!(step(&mut one, each), step(&mut two, each));
            }
            prop_assert_eq!(one, two);
        }
    }
}
