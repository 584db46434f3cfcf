//! What is free where, in the order in which it is looked for.
//!
//! ```text
//!   open hosts --traits--> (free cores, free memory, host), ascending: best fit is the first one that has enough
//!              --fabric, traits--> the same, of the hosts that an Aggregate VM may be split over
//! ```
//! Whether a VM may run on hosts with some traits is asked once for all of them. A look-up costs two searches of a tree for
//! each number of free cores that hosts have, however many hosts there are.

use super::host::{Host, Traits};
use crate::ids::{Fabric, HostId};
use crate::resources::Resources;
use std::collections::{BTreeMap, BTreeSet};

/// Free cores, free memory, the host.
pub(crate) type Free = (u32, u32, HostId);

/// Hosts by what is free there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct FreeSet {
    set: BTreeSet<Free>,
    cores: u64,
    memory: u64,
}

impl FreeSet {
    fn add(&mut self, free: Free) {
        if self.set.insert(free) {
            self.cores += u64::from(free.0);
            self.memory += u64::from(free.1);
        }
    }

    fn remove(&mut self, free: Free) {
        if self.set.remove(&free) {
            self.cores -= u64::from(free.0);
            self.memory -= u64::from(free.1);
        }
    }
}

type ByTraits = BTreeMap<Traits, FreeSet>;

/// The index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Index {
    all: ByTraits,
    fabrics: BTreeMap<Fabric, ByTraits>,
}

impl Index {
    pub(super) fn add(&mut self, host: &Host) {
        self.all.entry(host.traits).or_default().add(key(host));
        if host.traits.shares {
            let fabric = self.fabrics.entry(host.fabric()).or_default();
            fabric.entry(host.traits).or_default().add(key(host));
        }
    }

    pub(super) fn remove(&mut self, host: &Host) {
        if let Some(set) = self.all.get_mut(&host.traits) {
            set.remove(key(host));
        }
        let fabric = self.fabrics.get_mut(&host.fabric());
        if let Some(set) = fabric.and_then(|fabric| fabric.get_mut(&host.traits)) {
            set.remove(key(host));
        }
    }

    /// Hosts with enough, the best fit first: least cores left, then least memory, then the lowest number.
    pub(super) fn best_fit<'a>(
        &'a self,
        needs: Resources,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = HostId> + 'a {
        fits(those_of(&self.all, suits), needs)
    }

    /// The same within a fabric.
    pub(super) fn best_fit_in<'a>(
        &'a self,
        fabric: Fabric,
        needs: Resources,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = HostId> + 'a {
        fits(self.sets(fabric, suits), needs)
    }

    /// Hosts with free cores, most first, then most memory.
    pub(super) fn emptiest<'a>(
        &'a self,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = HostId> + 'a {
        let sets = those_of(&self.all, suits).into_iter();
        let sets = sets.map(|set| set.set.range((1, 0, HostId(0))..).rev().copied());
        merge(sets.collect(), |a, b| a > b).map(|free| free.2)
    }

    /// Fabrics, with the cores and the memory that are free there altogether.
    pub(super) fn fabrics(
        &self,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = (Fabric, u64, u64)> {
        self.fabrics.iter().map(move |(fabric, sets)| {
            let (cores, memory) = sums(sets, &suits);
            (*fabric, cores, memory)
        })
    }

    /// What is free altogether.
    pub(super) fn free(&self, suits: impl Fn(&Traits) -> bool) -> (u64, u64) {
        sums(&self.all, &suits)
    }

    /// Hosts of a fabric with free cores, most first, then most memory.
    pub(super) fn most_first<'a>(
        &'a self,
        fabric: Fabric,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = Free> + 'a {
        let sets = self.sets(fabric, suits);
        let sets = sets.into_iter().map(|set| set.set.range((1, 0, HostId(0))..).rev().copied());
        merge(sets.collect(), |a, b| a > b)
    }

    /// Hosts of a fabric with so many free cores and more, fewest first, then least memory.
    pub(super) fn least_first<'a>(
        &'a self,
        fabric: Fabric,
        from: u32,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = Free> + 'a {
        let sets = self.sets(fabric, suits);
        let sets = sets.into_iter().map(|set| set.set.range((from, 0, HostId(0))..).copied());
        merge(sets.collect(), |a, b| a < b)
    }

    /// For each number of free cores that hosts of a fabric have, those with most memory first.
    pub(super) fn most_memory_by_cores<'a>(
        &'a self,
        fabric: Fabric,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = impl Iterator<Item = Free> + 'a> + 'a {
        self.sets(fabric, suits).into_iter().flat_map(|set| {
            let mut below = u32::MAX;
            std::iter::from_fn(move || {
                let (cores, ..) = *set.set.range(..(below, 0, HostId(0))).next_back()?;
                below = cores;
                let last = (cores, u32::MAX, HostId(u32::MAX));
                Some(set.set.range((cores, 0, HostId(0))..=last).rev().copied())
            })
        })
    }

    fn sets(&self, fabric: Fabric, suits: impl Fn(&Traits) -> bool) -> Vec<&FreeSet> {
        self.fabrics.get(&fabric).map_or_else(Vec::new, |sets| those_of(sets, suits))
    }
}

fn those_of(sets: &ByTraits, suits: impl Fn(&Traits) -> bool) -> Vec<&FreeSet> {
    sets.iter().filter(|(traits, _)| suits(traits)).map(|(_, set)| set).collect()
}

fn fits(sets: Vec<&FreeSet>, needs: Resources) -> impl Iterator<Item = HostId> {
    let fits = sets.into_iter().map(|set| BestFit::new(&set.set, needs));
    merge(fits.collect(), |a, b| a < b).map(|free| free.2)
}

fn key(host: &Host) -> Free {
    (host.free().cores, host.free().memory, host.id())
}

fn sums(sets: &ByTraits, suits: &impl Fn(&Traits) -> bool) -> (u64, u64) {
    let sets = sets.iter().filter(|(traits, _)| suits(traits));
    sets.fold((0, 0), |sum, (_, set)| (sum.0 + set.cores, sum.1 + set.memory))
}

/// Hosts of a set with enough, in order. A number of cores that nobody with enough memory has is skipped at once.
struct BestFit<'a> {
    set: &'a BTreeSet<Free>,
    memory: u32,
    from: Free,
}

impl<'a> BestFit<'a> {
    fn new(set: &'a BTreeSet<Free>, needs: Resources) -> Self {
        Self { set, memory: needs.memory, from: (needs.cores, needs.memory, HostId(0)) }
    }
}

impl Iterator for BestFit<'_> {
    type Item = Free;

    fn next(&mut self) -> Option<Free> {
        loop {
            let next = *self.set.range(self.from..).next()?;
            let (cores, memory, host) = next;
            if memory >= self.memory {
                let after = host.0.checked_add(1).map(|host| (cores, memory, HostId(host)));
                self.from = after.unwrap_or_else(|| (cores, memory.saturating_add(1), HostId(0)));
                return Some(next);
            }
            self.from = (cores, self.memory, HostId(0));
        }
    }
}

/// What comes first of several in order.
fn merge<I: Iterator<Item = Free>>(
    iterators: Vec<I>,
    before: fn(&Free, &Free) -> bool,
) -> impl Iterator<Item = Free> {
    let mut heads: Vec<(Option<Free>, I)> =
        iterators.into_iter().map(|mut it| (it.next(), it)).collect();
    std::iter::from_fn(move || {
        let mut best: Option<(usize, Free)> = None;
        for (at, (head, _)) in heads.iter().enumerate() {
            let Some(head) = head else { continue };
            if best.is_none_or(|(_, best)| before(head, &best)) {
                best = Some((at, *head));
            }
        }
        let (at, free) = best?;
        let (head, rest) = &mut heads[at];
        *head = rest.next();
        Some(free)
    })
}
