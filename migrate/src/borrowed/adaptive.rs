//! Whether borrowed vCPUs pay, by what all vCPUs did in a window.

use super::Side;
use super::planted::PlantedBug;
use crate::planted::Planted;
use std::time::Duration;

/// Windows in a row that must say the same.
const VOTES: u32 = 3;
/// The first windows after a move tell of the move: pages that were used before it follow then.
const SETTLE: u32 = 4;
/// Windows at home before the next try: at first and at most.
const HOLD_OFF: (u32, u32) = (8, 512);
/// A stay of fewer windows away has failed.
const SOON: u32 = 32;

/// What all vCPUs of the VM did in a window, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How long the window was.
    pub length: Duration,
    /// They ran for so long.
    pub run: Duration,
    /// They could run, and waited for a core.
    pub delayed: Duration,
    /// They waited for pages of other slices, or devices of their slices did.
    pub waited: Duration,
}

impl Load {
    /// At home: half a vCPU or more has waited for a core, and vCPUs ask for all cores or more.
    fn is_short_of_cores(&self, cores: u32) -> bool {
        let all = self.length.saturating_mul(cores);
        self.delayed >= self.length / 2 && self.run + self.delayed >= all / 10 * 9
    }

    /// Away: at home, where vCPUs get so many thousandths of a core, all would have run for longer. What waits for pages would run there. A tenth is
    /// left for what is not known, and a wait of less than a twentieth of a vCPU is nobody's trouble.
    fn is_less_than_home(&self, milli_cores: u32) -> bool {
        let most = self.length.saturating_mul(milli_cores) / 1000;
        let home = (self.run + self.waited).min(most);
        self.waited >= self.length / 20 && self.run < home / 10 * 9
    }
}

/// Decides window by window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    side: Side,
    /// Of the bootstrap's slice.
    cores: u32,
    /// Thousandths of a core that vCPUs had there when they went last: others may use these cores too.
    milli_cores: u32,
    /// Windows since all were on this side.
    age: u32,
    /// The last ones that spoke for the other side.
    votes: u32,
    /// Windows at home before they may go.
    hold_off: u32,
    planted: Planted<PlantedBug>,
}

impl Adaptive {
    /// All borrowed vCPUs are on this side. `cores` are those that the bootstrap's slice has of its own: its vCPUs of the layout.
    #[must_use]
    pub fn new(side: Side, cores: u32) -> Self {
        let planted = Planted::default();
        let milli_cores = cores.saturating_mul(1000);
        Self { side, cores, milli_cores, age: 0, votes: 0, hold_off: HOLD_OFF.0, planted }
    }

    /// With a bug that a model is to find.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(self, bug: PlantedBug) -> Self {
        Self { planted: Planted::some(bug), ..self }
    }

    /// Where they are to be.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Windows at home before the next try.
    #[must_use]
    pub fn hold_off(&self) -> u32 {
        self.hold_off
    }

    /// Takes in a window, in which all were where they are to be. True where they are to be on the other side from now on.
    pub fn observe(&mut self, load: &Load) -> bool {
        // No rule asks for more.
        self.age = (self.age + 1).min(HOLD_OFF.1);
        let has_settled = self.age > SETTLE || self.planted.has(PlantedBug::Unsettled);
        let held = self.age < self.hold_off && !self.planted.has(PlantedBug::HoldOffIgnored);
        let speaks = match self.side {
            Side::Home => load.is_short_of_cores(self.cores),
            Side::Away => load.is_less_than_home(self.milli_cores),
        };
        self.votes = if speaks && has_settled { (self.votes + 1).min(VOTES) } else { 0 };
        let needed = if self.planted.has(PlantedBug::OneWindow) { 1 } else { VOTES };
        let flips = self.votes >= needed && !(self.side == Side::Home && held);
        if flips {
            if self.side == Side::Home {
                self.milli_cores = milli_cores(load).min(self.cores.saturating_mul(1000));
            }
            self.flip();
        }
        flips
    }

    /// After a stay away.
    fn next_hold_off(&self) -> u32 {
        if self.age >= SOON {
            if self.planted.has(PlantedBug::PayForgotten) { self.hold_off } else { HOLD_OFF.0 }
        } else if self.planted.has(PlantedBug::TriesForgotten) {
            self.hold_off
        } else {
            (self.hold_off * 2).min(HOLD_OFF.1)
        }
    }

    fn flip(&mut self) {
        self.side = match self.side {
            Side::Home => Side::Away,
            Side::Away => {
                self.hold_off = self.next_hold_off();
                Side::Home
            }
        };
        (self.age, self.votes) = (0, 0);
    }
}

/// What vCPUs had of cores, in thousandths.
fn milli_cores(load: &Load) -> u32 {
    let share = load.run.as_micros() * 1000 / load.length.as_micros().max(1);
    u32::try_from(share).unwrap_or(u32::MAX)
}
