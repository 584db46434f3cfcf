//! What an algorithm is given, and what it costs.

/// One access of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Slice of the vCPU.
    pub slice: u16,
    /// The page.
    pub page: u64,
    /// Whether it writes.
    pub write: bool,
}

/// What accesses cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Accesses that needed another slice or waited for one.
    pub faults: u64,
    /// Messages between different slices.
    pub messages: u64,
    /// Of these, messages with a page.
    pub copies: u64,
}

impl Cost {
    /// Messages and copies per thousand faults of some algorithm, rounded down.
    #[must_use]
    pub fn per_thousand(self, faults: u64) -> (u64, u64) {
        let share = |count: u64| (count * 1000).checked_div(faults).unwrap_or(0);
        (share(self.messages), share(self.copies))
    }

    /// For a table: its own faults, and messages / copies per fault of the same accesses elsewhere.
    #[must_use]
    pub fn row(self, faults: u64) -> String {
        let (messages, copies) = self.per_thousand(faults);
        let number = |thousandths: u64| format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
        format!("{} faults, {} / {}", self.faults, number(messages), number(copies))
    }
}

/// A way to keep memory coherent.
pub trait Algorithm {
    /// Carries an access out.
    fn touch(&mut self, touch: Touch);
    /// What all accesses cost so far.
    fn cost(&self) -> Cost;
}
