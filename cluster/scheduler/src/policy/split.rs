//! A VM over several hosts of one fabric.
//!
//! ```text
//!   fabrics with enough altogether --for each--> hosts in order --> cores, as many as each has free
//!                                                               --> memory beside the cores, the rest where there is room,
//!                                                                   then on hosts without cores of the VM
//!                                                               --> devices on one of these hosts, or on one more
//! ```
//! Cores and memory are two knapsacks: a slice may have either alone. Nothing is balanced between hosts (FragVisor, 6.5).

use crate::cluster::{Cluster, Host, Traits};
use crate::ids::{Fabric, HostId, VmId};
use crate::placement::Share;
use crate::planted::PlantedBug;
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};
use crate::validate::{Candidate, of_moment, of_traits};
use std::cmp::Reverse;

/// Which hosts come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    /// Those with most free cores, so that there are few.
    MostFirst,
    /// Those with fewest, so that there are many.
    LeastFirst,
}

/// Hosts beyond those that are needed that are looked at for one of the same failure domain.
const NEIGHBOURS_LOOKED_AT: usize = 16;

/// What is to be split, and how far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitter<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) spec: &'a Spec,
    pub(super) vm: Option<VmId>,
    pub(super) slices_max: u16,
    /// The last slice with cores goes to the host that has least left with it.
    pub(super) is_last_tight: bool,
}

impl<'a> Splitter<'a> {
    /// The best fabric's split: fewest slices, or most. Of fabrics alike the lowest one.
    pub(super) fn split(&self, order: Order) -> Option<Vec<Share>> {
        let needs = self.spec.needs;
        let enough = |cores: u64, memory: u64| {
            cores >= u64::from(needs.cores) && memory >= u64::from(needs.memory)
        };
        let fabrics = self.cluster.fabrics(|traits| self.suits(traits, &[]));
        let mut best: Option<Vec<Share>> = None;
        for (fabric, ..) in fabrics.filter(|(_, cores, memory)| enough(*cores, *memory)) {
            let best_count = best.as_ref().map_or(0, Vec::len);
            if order == Order::MostFirst && !self.may_need_fewer(fabric, best_count) {
                continue;
            }
            let Some(shares) = self.split_in(fabric, order) else { continue };
            let count = shares.len();
            let is_better = match order {
                Order::MostFirst => best_count == 0 || count < best_count,
                Order::LeastFirst => count > best_count,
            };
            if is_better {
                best = Some(shares);
            }
            let is_extreme = match order {
                Order::MostFirst => count <= 2,
                Order::LeastFirst => count >= usize::from(self.slices_max),
            };
            if is_extreme {
                break;
            }
        }
        best
    }

    /// Whether the hosts with most free cores are few enough, were there no other rule: cheaper to ask than to split.
    fn may_need_fewer(&self, fabric: Fabric, best: usize) -> bool {
        let most = usize::from(self.slices_max);
        let limit = if best == 0 { most } else { most.min(best - 1) };
        let largest = self.cluster.most_first(fabric, |traits| self.suits(traits, &[]));
        let cores: u64 = largest.take(limit).map(|free| u64::from(free.0)).sum();
        cores >= u64::from(self.spec.needs.cores)
    }

    fn suits(&self, traits: &Traits, devices: &[DeviceCount]) -> bool {
        of_traits(traits, &self.slice().with(Resources::NONE, devices)).is_none()
    }

    fn slice(&self) -> Candidate<'a> {
        Candidate::slice(self.spec, self.vm)
    }

    /// Whether a slice with nothing may be there now.
    fn admits(&self, host: HostId) -> Option<&'a Host> {
        let host = self.cluster.host(host)?;
        of_moment(self.cluster, host, &self.slice()).is_none().then_some(host)
    }

    fn split_in(&self, fabric: Fabric, order: Order) -> Option<Vec<Share>> {
        let hosts = match order {
            Order::MostFirst => self.fewest(fabric)?,
            Order::LeastFirst => self.most(fabric)?,
        };
        let mut shares = self.cores(&hosts);
        self.memory(fabric, &mut shares)?;
        self.devices(fabric, &mut shares)?;
        self.order(&mut shares);
        Some(shares)
    }

    /// The host that has all devices and most free cores.
    fn host_of_devices(&self, fabric: Fabric) -> Option<&'a Host> {
        let devices = self.spec.devices.as_slice();
        if devices.is_empty() {
            return None;
        }
        let it = self.slice().with(Resources::NONE, devices);
        let free = self.cluster.most_first(fabric, |traits| self.suits(traits, devices));
        let hosts = free.filter_map(|(.., host)| self.cluster.host(host));
        { hosts }.find(|host| of_moment(self.cluster, host, &it).is_none())
    }

    /// Hosts with most free cores until there are enough, in the failure domain of the first if that costs nothing.
    fn fewest(&self, fabric: Fabric) -> Option<Vec<&'a Host>> {
        let most = usize::from(self.slices_max);
        let seed = self.host_of_devices(fabric);
        let all = self.cluster.most_first(fabric, |traits| self.suits(traits, &[]));
        let others = all.filter(|(.., host)| seed.is_none_or(|seed| seed.id() != *host));
        let others = others.filter_map(|(.., host)| self.admits(host));
        let mut hosts: Vec<&Host> = others.take(most + NEIGHBOURS_LOOKED_AT).collect();
        let domain = seed.or_else(|| first_of(&hosts)).map(Host::domain);
        hosts.sort_by_key(|host| {
            let free = host.free();
            let is_far = domain != Some(host.domain());
            (Reverse(free.cores), is_far, Reverse(free.memory), host.id())
        });
        let in_order = seed.into_iter().chain(hosts);
        let mut chosen = self.until_enough(in_order.take(most))?;
        if self.is_last_tight {
            self.tighten(fabric, &mut chosen);
        }
        Some(chosen)
    }

    /// Hosts with fewest free cores: from the lowest number of free cores from which as many as are allowed have enough.
    fn most(&self, fabric: Fabric) -> Option<Vec<&'a Host>> {
        let most = usize::from(self.slices_max);
        let seed = self.host_of_devices(fabric);
        let mut from = 1;
        loop {
            let all = self.cluster.least_first(fabric, from, |traits| self.suits(traits, &[]));
            let others = all.filter(|(.., host)| seed.is_none_or(|seed| seed.id() != *host));
            let mut others = others.filter_map(|(.., host)| self.admits(host)).peekable();
            from = others.peek()?.free().cores.checked_add(1)?;
            let chosen = self.until_enough(seed.into_iter().chain(others).take(most));
            if chosen.is_some() {
                return chosen;
            }
        }
    }

    fn until_enough(&self, hosts: impl Iterator<Item = &'a Host>) -> Option<Vec<&'a Host>> {
        let (mut chosen, mut cores) = (Vec::new(), 0u32);
        for host in hosts {
            chosen.push(host);
            cores = cores.saturating_add(host.free().cores);
            if cores >= self.spec.needs.cores {
                return Some(chosen);
            }
        }
        None
    }

    /// The last host is the one that has least left with what is left for it.
    fn tighten(&self, fabric: Fabric, chosen: &mut Vec<&'a Host>) {
        let Some(last) = chosen.pop() else { return };
        let cores = chosen.iter().fold(0u32, |sum, host| sum.saturating_add(host.free().cores));
        let rest = self.spec.needs.cores.saturating_sub(cores);
        let needs = Resources::new(rest, self.spec.needs.memory_with(rest));
        let fits = self.cluster.best_fit_in(fabric, needs, |traits| self.suits(traits, &[]));
        let taken = |host: &Host| chosen.iter().any(|other| other.id() == host.id());
        let better = { fits }.find(|host| !taken(host) && self.admits(host.id()).is_some());
        chosen.push(better.unwrap_or(last));
    }

    fn cores(&self, hosts: &[&Host]) -> Vec<Share> {
        let mut rest = self.spec.needs.cores;
        let mut share = |host: &&Host| {
            let cores = host.free().cores.min(rest);
            rest -= cores;
            Share::new(host.id(), Resources::new(cores, 0))
        };
        hosts.iter().map(&mut share).collect()
    }

    fn free_memory(&self, host: HostId) -> u32 {
        self.cluster.host(host).map_or(0, |host| host.free().memory)
    }

    fn memory(&self, fabric: Fabric, shares: &mut Vec<Share>) -> Option<()> {
        let needs = self.spec.needs;
        let mut rest = needs.memory;
        for share in &mut *shares {
            let near = needs.memory_with(share.resources.cores);
            share.resources.memory = near.min(self.free_memory(share.host)).min(rest);
            rest -= share.resources.memory;
        }
        if self.cluster.planted().has(PlantedBug::SurplusForgotten) {
            return Some(());
        }
        for share in &mut *shares {
            let room = self.free_memory(share.host) - share.resources.memory;
            let more = room.min(rest);
            share.resources.memory += more;
            rest -= more;
        }
        while rest > 0 {
            if shares.len() >= usize::from(self.slices_max) {
                return None;
            }
            let taken = |host: &Host| shares.iter().any(|share| share.host == host.id());
            let admits = |host: &Host| !taken(host) && self.admits(host.id()).is_some();
            let most =
                self.cluster.most_memory(fabric, |traits| self.suits(traits, &[]), admits)?;
            let more = most.1.min(rest);
            shares.push(Share::new(most.2, Resources::new(0, more)));
            rest -= more;
        }
        Some(())
    }

    /// Each kind on the first of the hosts that has enough of it, else on one more host of the fabric.
    fn devices(&self, fabric: Fabric, shares: &mut Vec<Share>) -> Option<()> {
        for device in &self.spec.devices {
            let has = |host: &Host| host.free_devices(device.kind) >= device.count;
            let among = |share: &&mut Share| self.cluster.host(share.host).is_some_and(has);
            if let Some(share) = shares.iter_mut().find(among) {
                share.devices.push(*device);
                continue;
            }
            if shares.len() >= usize::from(self.slices_max) {
                return None;
            }
            let kinds = std::slice::from_ref(device);
            let hosts = self.cluster.least_first(fabric, 0, |traits| self.suits(traits, kinds));
            let mut hosts = hosts.filter_map(|(.., host)| self.admits(host));
            let mut share = Share::new(hosts.find(|host| has(host))?.id(), Resources::NONE);
            share.devices.push(*device);
            shares.push(share);
        }
        Some(())
    }

    /// The bootstrap slice first: with cores, and with devices if one has both, and most cores of these.
    fn order(&self, shares: &mut [Share]) {
        shares.sort_by_key(|share| {
            let cores = share.resources.cores;
            (cores == 0, share.devices.is_empty(), Reverse(cores), share.host)
        });
    }
}

fn first_of<'a>(hosts: &[&'a Host]) -> Option<&'a Host> {
    hosts.first().copied()
}
