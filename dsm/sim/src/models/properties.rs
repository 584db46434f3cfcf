//! What must hold in every state, and what must be reached in some.

use super::cluster::{Cluster, Slice, Violation};
use super::scenario::Scenario;
use dsm_protocol::{Access, Gfn};
use stateright::{Model, Property};

/// Names of the properties, as counterexamples give them.
pub mod names {
    /// Nobody else may read a page that one slice may write.
    pub const WRITER_ALONE: &str = "a writer is alone";
    /// Every readable copy equals the flat memory.
    pub const CURRENT: &str = "a copy that can be read is current";
    /// Every load gives the value of the last store before it.
    pub const LOADS: &str = "a load gives the last store";
    /// No node refuses a message of an honest peer.
    pub const FITS: &str = "no message breaks the protocol";
    /// The node asks nothing of its store that an engine could not do.
    pub const STORE: &str = "the store is used as it can be";
    /// A page that its next owner writes is nobody's replica.
    pub const FREE: &str = "a free page is no replica";
    /// A pinned page stays.
    pub const PINNED: &str = "a pinned page stays";
    /// A page that some slice wrote counts as dirty when its entry is taken back.
    pub const DIRTY: &str = "a written page is dirty";
    /// When nothing more can happen, everyone is done.
    pub const AWAKE: &str = "nobody waits for ever";
    /// In the end all copies of a page are the same.
    pub const AGREE: &str = "in the end all copies agree";
    /// A page never has two homes, and all slices know the one that it has when nothing is on its way.
    pub const ONE_HOME: &str = "a page has one home";
    /// A home moves while a request for its pages waits.
    pub const MOVED_IN_USE: &str = "a home moves while somebody waits for it";
    /// A slice leaves.
    pub const LEFT: &str = "a slice leaves";
    /// A slice joins.
    pub const JOINED: &str = "a slice joins";
    /// All programs can end.
    pub const FINISHES: &str = "everyone finishes";
    /// Two slices can read at once.
    pub const READ_TOGETHER: &str = "two slices read together";
    /// A slice that is not home can write.
    pub const REMOTE_WRITE: &str = "a slice writes far from home";
    /// Some page becomes a replica.
    pub const REPLICATED: &str = "a table becomes a replica";
    /// A survivor waits for a lost slice.
    pub const BEREFT: &str = "a survivor waits for the lost slice";
    /// A message of another epoch was refused.
    pub const REFUSED: &str = "a message of another epoch is refused";
}

type Check = fn(&Scenario, &Cluster) -> bool;

pub(crate) fn all(scenario: &Scenario) -> Vec<Property<Scenario>> {
    let always: [(&'static str, Check); 11] = [
        (names::WRITER_ALONE, writer_alone),
        (names::CURRENT, current),
        (names::LOADS, |_, state| state.violation != Some(Violation::Stale)),
        (names::FITS, |_, state| !matches!(state.violation, Some(Violation::Protocol(_)))),
        (names::STORE, |_, state| !matches!(state.violation, Some(Violation::Store(_)))),
        (names::FREE, |_, state| state.violation != Some(Violation::Replica)),
        (names::PINNED, |_, state| state.violation != Some(Violation::Pin)),
        (names::DIRTY, |_, state| state.violation != Some(Violation::Clean)),
        (names::AWAKE, awake),
        (names::AGREE, agree),
        (names::ONE_HOME, one_home),
    ];
    let mut all: Vec<_> =
        always.into_iter().map(|(name, check)| Property::always(name, check)).collect();
    all.push(Property::sometimes(names::FINISHES, finished));
    if scenario.replicate {
        all.push(Property::sometimes(names::REPLICATED, replicated));
    } else if scenario.slices > 2 {
        all.push(Property::sometimes(names::READ_TOGETHER, read_together));
    }
    if !scenario.replicate {
        all.push(Property::sometimes(names::REMOTE_WRITE, remote_write));
    }
    if !scenario.moves.is_empty() && !scenario.replicate {
        all.push(Property::sometimes(names::MOVED_IN_USE, moved_in_use));
    }
    if scenario.leaver.is_some() {
        all.push(Property::sometimes(names::LEFT, |_, state: &Cluster| state.left));
    }
    if scenario.joiner.is_some() {
        all.push(Property::sometimes(names::JOINED, |_, state: &Cluster| state.joined));
    }
    if scenario.lose {
        all.push(Property::sometimes(names::BEREFT, bereft));
    }
    if !scenario.stale.is_empty() {
        all.push(Property::sometimes(names::REFUSED, refused));
    }
    all
}

/// Access of the living slices to one page.
fn accesses(state: &Cluster, gfn: u64) -> impl Iterator<Item = Access> {
    state.slices.iter().filter(|s| !s.lost).map(move |slice| slice.store.access(Gfn(gfn)))
}

fn writer_alone(scenario: &Scenario, state: &Cluster) -> bool {
    scenario.strict.iter().all(|gfn| {
        let writers = accesses(state, *gfn).filter(|access| *access == Access::Write).count();
        let holders = accesses(state, *gfn).filter(|access| *access > Access::None).count();
        writers == 0 || holders == 1
    })
}

fn current(scenario: &Scenario, state: &Cluster) -> bool {
    scenario.strict.iter().all(|gfn| {
        let flat = state.flat.get(&Gfn(*gfn));
        state.slices.iter().filter(|slice| !slice.lost).all(|slice| {
            slice.store.access(Gfn(*gfn)) == Access::None
                || flat.map_or_else(
                    || slice.store.holds(Gfn(*gfn), &Default::default()),
                    |page| slice.store.holds(Gfn(*gfn), page),
                )
        })
    })
}

fn finished(scenario: &Scenario, state: &Cluster) -> bool {
    state.vcpus.iter().zip(&scenario.vcpus).all(|(at, vcpu)| at.at == vcpu.ops.len())
}

fn awake(scenario: &Scenario, state: &Cluster) -> bool {
    let bereft = scenario.lose && state.slices.iter().any(|slice| slice.lost);
    if state.violation.is_some() || bereft {
        return true;
    }
    let mut actions = Vec::new();
    if !state.wires.is_empty() {
        return true;
    }
    scenario.actions(state, &mut actions);
    let quiet = || state.slices.iter().all(|slice| slice.lost || slice.node.is_quiet());
    !actions.is_empty() || (finished(scenario, state) && quiet())
}

fn agree(scenario: &Scenario, state: &Cluster) -> bool {
    if !state.wires.is_empty() || state.violation.is_some() || !finished(scenario, state) {
        return true;
    }
    (0..).map(Gfn).take(scenario.homes.len()).all(|gfn| {
        let living = state.slices.iter().filter(|slice| !slice.lost);
        let mut copies = living.filter(|slice| slice.node.access(gfn) != Access::None);
        let first = copies.next().map(|slice| slice.store.page(gfn));
        first.is_none_or(|page| copies.all(|slice| slice.store.holds(gfn, &page)))
    })
}

fn one_home(scenario: &Scenario, state: &Cluster) -> bool {
    let quiet = state.wires.is_empty() && state.violation.is_none();
    (0..).map(Gfn).take(scenario.homes.len()).all(|gfn| {
        // A slice that was lost is home of what it was, and one that has left is home of nothing.
        let members = || state.slices.iter().filter(|slice| scenario.lose || !slice.lost);
        let homes = || members().filter(|slice| slice.node.is_home(gfn));
        let known = || members().map(|slice| slice.node.home(gfn));
        let agreed = known().collect::<Vec<_>>().windows(2).all(|pair| pair[0] == pair[1]);
        homes().count() <= 1 && (!quiet || (homes().count() == 1 && agreed))
    })
}

fn moved_in_use(scenario: &Scenario, state: &Cluster) -> bool {
    let frames = scenario.moves.iter().flat_map(|(first, pages, _)| {
        let frames = *first..first + u64::from(*pages);
        frames.map(Gfn)
    });
    let moving = |slice: &Slice, gfn| slice.node.is_home_moving(gfn) && slice.node.is_waiting(gfn);
    state.wires.len() > 1
        && frames.into_iter().any(|gfn| state.slices.iter().any(|slice| moving(slice, gfn)))
}

fn read_together(scenario: &Scenario, state: &Cluster) -> bool {
    let readers = |gfn: &u64| accesses(state, *gfn).filter(|a| *a == Access::Read).count() >= 2;
    scenario.strict.iter().any(readers)
}

fn remote_write(scenario: &Scenario, state: &Cluster) -> bool {
    scenario.strict.iter().any(|gfn| {
        let home = &state.slice(scenario.home(*gfn)).store;
        home.access(Gfn(*gfn)) == Access::None && accesses(state, *gfn).any(|a| a == Access::Write)
    })
}

fn replicated(_: &Scenario, state: &Cluster) -> bool {
    state.slices.iter().any(|slice| slice.node.stats().replicas.pages > 0)
}

fn bereft(scenario: &Scenario, state: &Cluster) -> bool {
    state.slices.iter().any(|slice| slice.lost)
        && state.wires.is_empty()
        && !finished(scenario, state)
        && state.slices.iter().any(|slice| !slice.lost && !slice.node.is_quiet())
}

fn refused(_: &Scenario, state: &Cluster) -> bool {
    state.slices.iter().any(|slice| slice.node.stats().epoch_refused > 0)
}
