//! What is compared by `./x bench net`, and how much is measured.

use std::fmt;

use lab::distro::{OBJECTS, Object};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Raw,
    Local,
    Bypass,
    Coherent,
}

pub(crate) const MODES: [Mode; 4] = [Mode::Raw, Mode::Local, Mode::Bypass, Mode::Coherent];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Raw => "raw",
            Self::Local => "local",
            Self::Bypass => "bypass",
            Self::Coherent => "coherent",
        })
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) objects: &'static [&'static str],
    pub(crate) rounds: usize,
    /// Of one load, after one second of warm-up.
    pub(crate) seconds: u32,
    /// Rounds of the largest objects without a line.
    pub(crate) free_rounds: usize,
}

pub(crate) const QUICK: Plan =
    Plan { objects: &["1k", "64k", "1m"], rounds: 2, seconds: 6, free_rounds: 1 };
pub(crate) const FULL: Plan = Plan {
    objects: &["1k", "4k", "16k", "64k", "256k", "1m", "2m"],
    rounds: 3,
    seconds: 8,
    free_rounds: 2,
};
/// Measured without a line as well.
pub(crate) const FREE: &str = "1m";

/// Objects of the guest by their names.
pub(crate) fn objects(names: &[&str]) -> Vec<Object> {
    OBJECTS.into_iter().filter(|object| names.contains(&object.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planned_object_is_one_of_the_guest() {
        for plan in [QUICK, FULL] {
            assert_eq!(objects(plan.objects).len(), plan.objects.len());
        }
    }
}
