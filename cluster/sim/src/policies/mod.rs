//! All policies by their names: those of the scheduler, and others that are here to be compared with.
//!
//! | name | a VM that fits one host | one that does not | later |
//! |---|---|---|---|
//! | `bff` | best fit | waits | |
//! | `fragbff-{min,max}-{frag,nodes}` | best fit | split over fewest or most hosts | least fragmentation, fewest hosts |
//! | `fragbff-none` | best fit | split over fewest hosts | |
//! | `fragbff-min-nodes-room` | best fit | split over fewest hosts; others move aside for the first that waits | fewest hosts |
//! | `ours` | best fit | split over fewest hosts; others move aside for the first that waits | by age and worth |
//! | `ours-no-room` | best fit | split over fewest hosts | the same |
//! | `ours-eager` | best fit | the same; others move aside early and often | the same |
//! | `protean` | rules in their order, quantised | waits | |
//! | `dot-product`, `l2` | by the vector of what is wanted and what is free | waits | |
//! | `fgd` | what leaves least that the next VM cannot use | waits | |
//! | `whole-vm` | best fit | waits until smaller VMs have moved aside | |
//! | `split-whole-vm` | best fit | split over fewest hosts | fewest hosts, or another one for all of it |

mod fgd;
mod protean;
mod scored;
mod vector;
mod whole_vm;
mod with_room;

pub use fgd::Fgd;
pub use protean::Protean;
pub use vector::{Measure, Vector};
pub use whole_vm::{SplitAndMove, WholeVm};
pub use with_room::FragBffWithRoom;

use scheduler::fragmentation::Mix;
use scheduler::policy::{Bff, Consolidation, FragBff, Lifetime, Policy, Spread};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A policy, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// Best fit, FIFO with backfill.
    Bff,
    /// FragVisor's.
    FragBff(Spread, Consolidation),
    /// FragVisor's with fewest nodes, and room as ours makes it.
    FragBffWithRoom,
    /// Tessera's.
    Ours,
    /// Tessera's, and nobody moves aside.
    OursWithoutRoom,
    /// Tessera's, and others move aside early and often.
    OursEager,
    /// Rules as of Azure's allocator.
    Protean,
    /// Vector bin packing by the dot product.
    DotProduct,
    /// Vector bin packing by the norm of what is left.
    L2,
    /// Fragmentation gradient descent.
    Fgd,
    /// Nothing is split; VMs move aside.
    WholeVm,
    /// FragBFF and moves of whole VMs.
    SplitAndMove,
}

impl Name {
    /// All, in the order of tables.
    pub const ALL: [Self; 16] = [
        Self::Bff,
        Self::Protean,
        Self::DotProduct,
        Self::L2,
        Self::Fgd,
        Self::WholeVm,
        Self::FragBff(Spread::MinNodes, Consolidation::None),
        Self::FragBff(Spread::MinNodes, Consolidation::MinFragmentation),
        Self::FragBff(Spread::MinNodes, Consolidation::MinNodes),
        Self::FragBff(Spread::MaxNodes, Consolidation::MinFragmentation),
        Self::FragBff(Spread::MaxNodes, Consolidation::MinNodes),
        Self::FragBffWithRoom,
        Self::SplitAndMove,
        Self::Ours,
        Self::OursWithoutRoom,
        Self::OursEager,
    ];

    /// The policy.
    #[must_use]
    pub fn policy(self) -> Box<dyn Policy> {
        let mix = Mix::azure();
        match self {
            Self::Bff => Box::new(Bff),
            Self::FragBff(spread, consolidation) => {
                Box::new(FragBff { spread, consolidation, mix })
            }
            Self::FragBffWithRoom => {
                let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
                Box::new(FragBffWithRoom(FragBff { spread, consolidation, mix }))
            }
            Self::Ours => Box::new(Lifetime::azure()),
            Self::OursWithoutRoom => Box::new(Lifetime { room: None, ..Lifetime::azure() }),
            Self::OursEager => Box::new(Lifetime::azure().with_eager_room()),
            Self::Protean => Box::new(Protean),
            Self::DotProduct => Box::new(Vector { measure: Measure::DotProduct }),
            Self::L2 => Box::new(Vector { measure: Measure::L2 }),
            Self::Fgd => Box::new(Fgd { mix }),
            Self::WholeVm => Box::new(WholeVm),
            Self::SplitAndMove => Box::new(SplitAndMove::new(mix)),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bff => "bff",
            Self::FragBff(Spread::MinNodes, Consolidation::None) => "fragbff-none",
            Self::FragBff(Spread::MinNodes, Consolidation::MinFragmentation) => "fragbff-min-frag",
            Self::FragBff(Spread::MinNodes, Consolidation::MinNodes) => "fragbff-min-nodes",
            Self::FragBff(Spread::MaxNodes, Consolidation::None) => "fragbff-max-none",
            Self::FragBff(Spread::MaxNodes, Consolidation::MinFragmentation) => "fragbff-max-frag",
            Self::FragBff(Spread::MaxNodes, Consolidation::MinNodes) => "fragbff-max-nodes",
            Self::FragBffWithRoom => "fragbff-min-nodes-room",
            Self::Ours => "ours",
            Self::OursWithoutRoom => "ours-no-room",
            Self::OursEager => "ours-eager",
            Self::Protean => "protean",
            Self::DotProduct => "dot-product",
            Self::L2 => "l2",
            Self::Fgd => "fgd",
            Self::WholeVm => "whole-vm",
            Self::SplitAndMove => "split-whole-vm",
        })
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no policy {name:?}; there are: {}", names())]
pub struct UnknownName {
    /// What was asked for.
    name: String,
}

fn names() -> String {
    Name::ALL.map(|name| name.to_string()).join(", ")
}

impl FromStr for Name {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|name| name.to_string() == text);
        found.ok_or_else(|| UnknownName { name: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{HOUR, Preset, Workload};
    use crate::{Pool, Simulation, Times};
    use scheduler::Settings;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in Name::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let error = "best".parse::<Name>().unwrap_err().to_string();
        assert!(error.contains("\"best\"") && error.contains("fragbff-min-frag"), "{error}");
    }

    /// Every policy, in a pool that is too full for all to start at once.
    #[test]
    fn all_policies_keep_the_rules() {
        for name in Name::ALL {
            let workload = Workload::new(Preset::Big, 0.85);
            let begins = workload.beginning();
            let pool = Pool { hosts: 16, gib: 256, ..Pool::default() };
            let requests = workload.generate(pool.all_cores(), 4);
            let settings = Settings::default();
            let it = Simulation::new(pool, name.policy(), settings, Times::default()).unwrap();
            let tally = it.run(requests, begins, begins + 240 * HOUR);
            let figures = tally.figures();

            assert_eq!(tally.broken(), 0, "{name}: {:?}", tally.rules());
            assert!(figures.utilisation_percent > 60.0, "{name}: {figures:?}");
            let splits = matches!(
                name,
                Name::FragBff(..)
                    | Name::FragBffWithRoom
                    | Name::Ours
                    | Name::OursWithoutRoom
                    | Name::OursEager
                    | Name::SplitAndMove
            );
            assert_eq!(figures.split_percent > 0.0, splits, "{name}: {figures:?}");
            let moves = matches!(
                name,
                Name::FragBff(_, Consolidation::MinNodes)
                    | Name::Ours
                    | Name::OursWithoutRoom
                    | Name::OursEager
                    | Name::WholeVm
            );
            assert!(!moves || figures.moves_per_hour > 0.0, "{name}: {figures:?}");
        }
    }
}
