//! Where a VM is started again: on the hosts that it was planned for, with spares in the place of those that do not answer, or on
//! what is left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Memory of a slice is a multiple of this.
const MEMORY_STEP: u64 = 2 << 20;

/// What a slice has of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Share {
    /// vCPUs that the guest has from the start.
    pub vcpus: u32,
    /// vCPUs that it may be told of later.
    pub spare_vcpus: u32,
    /// Memory in bytes.
    pub memory: u64,
}

impl Share {
    /// Whether there is nothing but devices.
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn all_vcpus(&self) -> u32 {
        self.vcpus.saturating_add(self.spare_vcpus)
    }
}

/// How much one host may have of a VM that is started on what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// vCPUs, those for later included.
    pub vcpus: u32,
    /// Memory in bytes.
    pub memory: u64,
}

/// From which slices a device can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceReach {
    /// The one that has it.
    pub slice: u16,
    /// Those that may have it as well.
    pub standby: Vec<u16>,
}

/// A VM as it is to be, and where else it may be. Hosts are numbered: that of slice K is K, and spares follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    /// What each slice has. The first is on the host of the supervisor, which is always there.
    pub slices: Vec<Share>,
    /// Hosts that may take the place of any slice but the first.
    pub spares: u16,
    /// If a VM may be started on fewer hosts: what one of them may have then.
    pub room: Option<Room>,
    /// Its devices.
    pub devices: Vec<DeviceReach>,
}

/// One slice of a VM that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The host that it is on.
    pub host: u16,
    /// The slice of the plan whose place it has.
    pub slice: u16,
    /// What it has of the VM.
    pub share: Share,
}

/// Where a VM is started: its slices, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout(pub Vec<Place>);

impl Plan {
    /// Hosts whose answers count: all but the supervisor's own.
    #[must_use]
    pub fn others(&self) -> Vec<u16> {
        (1..self.count().saturating_add(self.spares)).collect()
    }

    fn count(&self) -> u16 {
        u16::try_from(self.slices.len()).unwrap_or(u16::MAX)
    }

    /// Slices of the plan whose hosts do not answer.
    #[must_use]
    pub fn missing(&self, answering: &BTreeSet<u16>) -> Vec<u16> {
        (1..self.count()).filter(|slice| !answering.contains(slice)).collect()
    }

    /// As planned, if all answer.
    #[must_use]
    pub fn as_planned(&self, answering: &BTreeSet<u16>) -> Option<Layout> {
        self.missing(answering).is_empty().then(|| self.at(&BTreeMap::new()))
    }

    /// With spares, or on what is left. A spare takes over all of a slice: what it lends is for its operator to see to.
    #[must_use]
    pub fn without(&self, answering: &BTreeSet<u16>) -> Option<Layout> {
        let missing = self.missing(answering);
        let spares = (self.count()..).take(usize::from(self.spares));
        let mut spares = spares.filter(|spare| answering.contains(spare));
        let mut instead = BTreeMap::new();
        let mut left_out = Vec::new();
        for slice in missing {
            match spares.next() {
                Some(spare) => drop(instead.insert(slice, spare)),
                None => left_out.push(slice),
            }
        }
        let layout = self.at(&instead);
        if left_out.is_empty() { Some(layout) } else { self.fold(layout, &left_out) }
    }

    fn at(&self, instead: &BTreeMap<u16, u16>) -> Layout {
        let place = |(slice, share): (u16, &Share)| {
            let host = instead.get(&slice).copied().unwrap_or(slice);
            Place { host, slice, share: *share }
        };
        Layout((0..).zip(&self.slices).map(place).collect())
    }

    /// Shares out what these slices had among the others.
    fn fold(&self, layout: Layout, left_out: &[u16]) -> Option<Layout> {
        let room = self.room?;
        let is_left_out = |slice: u16| left_out.contains(&slice);
        let is_there = |slice: &u16| *slice < self.count() && !is_left_out(*slice);
        let reached =
            |device: &DeviceReach| is_there(&device.slice) || device.standby.iter().any(is_there);
        if !self.devices.iter().all(reached) {
            return None;
        }
        let (gone, mut places): (Vec<_>, Vec<_>) =
            layout.0.into_iter().partition(|place| is_left_out(place.slice));
        for Place { share, .. } in gone {
            give_vcpus(&mut places, room, share)?;
            give_memory(&mut places, room, share.memory)?;
        }
        Some(Layout(places))
    }
}

/// Those that may have more. A slice with devices only stays so: its loss is no loss of the VM.
fn takers(places: &mut [Place]) -> impl Iterator<Item = &mut Share> {
    let shares = places.iter_mut().map(|place| (place.slice, &mut place.share));
    shares.filter(|(slice, share)| *slice == 0 || !share.is_nothing()).map(|(_, share)| share)
}

/// One by one to whoever has the fewest.
fn give_vcpus(places: &mut [Place], room: Room, of: Share) -> Option<()> {
    for number in 0..of.all_vcpus() {
        let free = takers(places).filter(|share| share.all_vcpus() < room.vcpus);
        let fewest = free.min_by_key(|share| share.all_vcpus())?;
        let present = number < of.vcpus;
        *(if present { &mut fewest.vcpus } else { &mut fewest.spare_vcpus }) += 1;
    }
    Some(())
}

/// As much as fits to whoever has the most room.
fn give_memory(places: &mut [Place], room: Room, mut bytes: u64) -> Option<()> {
    while bytes > 0 {
        let free = |share: &Share| {
            let free = room.memory.saturating_sub(share.memory);
            free - free % MEMORY_STEP
        };
        let roomiest = takers(places).min_by_key(|share| Reverse(free(share)))?;
        let given = free(roomiest).min(bytes);
        if given == 0 {
            return None;
        }
        roomiest.memory += given;
        bytes -= given;
    }
    Some(())
}
