//! The saved form of a placement.
//!
//! ```text
//!   Placement --from--> PlacementState --encode--> bytes --decode, check--> PlacementState --try_from--> Placement
//! ```
//! There is no way from a form to a placement but through [`Placement::new`]. A form whose members or ranges are in
//! another order, or whose neighbours are not joined, says the same placement, which is saved in one form only.

use super::{DevicePlace, MemoryPlace, Placement, PlacementError};
use crate::saved::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use wire::{Epoch, SliceId};

/// Slices of a VM: holders of a page are bits of 64.
const MEMBERS: RangeInclusive<usize> = 1..=64;
/// vCPUs of a VM.
const VCPUS: RangeInclusive<usize> = 1..=256;
/// Ranges of memory. In pieces of 16 MiB, each of which has another home than its neighbours, this is 1 TiB.
const RANGES_MAX: usize = 1 << 16;
/// Devices: the slots of a bus but for that of the host bridge.
const DEVICES_MAX: usize = 31;
/// Queues of a device: its MSI-X vectors but for that of its configuration.
const QUEUES_MAX: usize = 255;
/// One past the last frame that can be: physical addresses have 52 bits at most (SDM vol. 3A, 4.1.4).
const FRAMES_END: u64 = 1 << 40;

/// Bytes of a slice's number.
const SLICE_BYTES: usize = 3;
/// Bytes of a range, with the names of its fields.
const RANGE_BYTES: usize = 37;
/// Bytes of a device without its queues.
const DEVICE_BYTES: usize = 19;
/// Bytes of the epoch, of the names of all fields and of the lengths of the lists.
const FIELDS_BYTES: usize = 128;

/// Guest frames and their home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryState {
    /// First frame.
    pub start: u64,
    /// One past the last frame.
    pub end: u64,
    /// The slice that keeps their directory entries.
    pub home: SliceId,
}

/// A device: its real part and its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    /// The slice whose host has the real device.
    pub owner: SliceId,
    /// The slice that serves each queue, by queue number.
    pub queues: Vec<SliceId>,
}

/// Where everything of a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementState {
    /// Version of the placement.
    pub epoch: Epoch,
    /// The VM's slices.
    pub members: Vec<SliceId>,
    /// The slice of each vCPU, by its id.
    pub vcpus: Vec<SliceId>,
    /// Guest memory with its homes.
    pub memory: Vec<MemoryState>,
    /// The devices, by number on the bus.
    pub devices: Vec<DeviceState>,
    /// The slice that coordinates.
    pub coordinator: SliceId,
    /// The one that did before, if it is still there.
    pub coordinated_before: Option<SliceId>,
}

impl SavedState for PlacementState {
    const NAME: &'static str = "placement";
    const VERSION: u16 = 2;
    /// 2.4 MB, nearly all of it for ranges.
    const MAX_BYTES: usize = (*MEMBERS.end() + *VCPUS.end()) * SLICE_BYTES
        + RANGES_MAX * RANGE_BYTES
        + DEVICES_MAX * (DEVICE_BYTES + QUEUES_MAX * SLICE_BYTES)
        + FIELDS_BYTES;

    fn check(&self) -> Result<(), Invalid> {
        Placement::try_from(self.clone()).map(drop)
    }
}

impl PlacementState {
    /// Whether all numbers are in their ranges, so that nothing that is counted or added up from them is beyond its own.
    fn check_bounds(&self) -> Result<(), Invalid> {
        let unless = Invalid::unless;
        unless(MEMBERS.contains(&self.members.len()), "members", "none, or more than 64")?;
        unless(VCPUS.contains(&self.vcpus.len()), "vcpus", "none, or more than 256")?;
        unless(self.memory.len() <= RANGES_MAX, "memory", "more than 65536 ranges")?;
        let beyond = self.memory.iter().any(|range| range.end > FRAMES_END);
        unless(!beyond, "memory", "a range beyond all physical addresses")?;
        unless(self.devices.len() <= DEVICES_MAX, "devices", "more than a bus has slots")?;
        let queues = self.devices.iter().all(|device| device.queues.len() <= QUEUES_MAX);
        unless(queues, "devices", "one with more than 255 queues")
    }
}

impl From<&Placement> for PlacementState {
    fn from(placement: &Placement) -> Self {
        let range = |place: &MemoryPlace| MemoryState {
            start: place.frames.start,
            end: place.frames.end,
            home: place.home,
        };
        let device =
            |place: &DevicePlace| DeviceState { owner: place.owner, queues: place.queues.clone() };
        Self {
            epoch: placement.epoch,
            members: placement.members.clone(),
            vcpus: placement.vcpus.clone(),
            memory: placement.memory.iter().map(range).collect(),
            devices: placement.devices.iter().map(device).collect(),
            coordinator: placement.coordinator,
            coordinated_before: placement.coordinated_before,
        }
    }
}

impl TryFrom<PlacementState> for Placement {
    type Error = Invalid;

    /// The placement that a form says.
    ///
    /// # Errors
    /// Numbers beyond what a VM can have, or what [`Placement::new`] refuses.
    fn try_from(state: PlacementState) -> Result<Self, Invalid> {
        state.check_bounds()?;
        let place =
            |range: MemoryState| MemoryPlace { frames: range.start..range.end, home: range.home };
        let memory = state.memory.into_iter().map(place).collect();
        let device =
            |device: DeviceState| DevicePlace { owner: device.owner, queues: device.queues };
        let devices = state.devices.into_iter().map(device).collect();
        let (now, before) = (state.coordinator, state.coordinated_before);
        Invalid::unless(before != Some(now), "coordinated_before", "the one that coordinates")?;
        let placement = Self::new(state.epoch, state.members, state.vcpus, memory, devices);
        let placement = placement.and_then(|placement| placement.coordinated_by(now, before));
        placement.map_err(|error| Invalid::new(field(&error), error.to_string()))
    }
}

/// The field that an error is about. A part that is on no member is named in the error itself.
fn field(error: &PlacementError) -> &'static str {
    match error {
        PlacementError::EmptyRange(_) | PlacementError::TwoHomes(_) => "memory",
        _ => "members",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;
    use crate::saved::{SavedError, decode, encode};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use wire::{Gfn, VcpuId};

    const FRAMES: u64 = 64;

    /// Three slices, four vCPUs, memory with a hole, and two devices.
    fn placement() -> Placement {
        let slices = |of: &[u16]| of.iter().copied().map(SliceId).collect::<Vec<_>>();
        let range = |frames, home| MemoryPlace { frames, home: SliceId(home) };
        let device = |owner, queues| DevicePlace { owner: SliceId(owner), queues: slices(queues) };
        let memory = vec![range(0..20, 0), range(20..40, 1), range(44..FRAMES, 2)];
        let devices = vec![device(0, &[0, 1, 2, 0]), device(2, &[])];
        let (members, vcpus) = (slices(&[0, 1, 2]), slices(&[0, 0, 1, 2]));
        Placement::new(Epoch(1), members, vcpus, memory, devices).unwrap()
    }

    fn state() -> PlacementState {
        PlacementState::from(&placement())
    }

    fn slice() -> impl Strategy<Value = SliceId> {
        (0..5_u16).prop_map(SliceId)
    }

    /// A step to the next epoch, possible or not.
    fn step() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            slice().prop_map(Change::Join),
            slice().prop_map(Change::Leave),
            (0..4_u32, slice()).prop_map(|(vcpu, to)| Change::Vcpu { vcpu: VcpuId(vcpu), to }),
            (0..FRAMES, 1..20_u64, slice())
                .prop_map(|(at, count, to)| Change::Memory { frames: at..at + count, to }),
            (0..4_u16, slice()).prop_map(|(queue, to)| Change::Queue { device: 0, queue, to }),
            (0..2_u16, slice()).prop_map(|(device, to)| Change::Device { device, to }),
            slice().prop_map(Change::Coordinator),
        ];
        vec(change, 1..4)
    }

    /// What is possible of these steps is done.
    fn after(steps: &[Vec<Change>]) -> Placement {
        let next =
            |placement: Placement, step: &Vec<Change>| placement.next(step).unwrap_or(placement);
        steps.iter().fold(placement(), next)
    }

    /// One field that somebody else has written.
    #[derive(Clone, Debug)]
    enum Write {
        Epoch(u32),
        Member(Index, u16),
        MoreMembers(u16),
        Vcpu(Index, u16),
        Vcpus(usize),
        Start(Index, u64),
        End(Index, u64),
        Home(Index, u16),
        AnotherRange(MemoryState),
        NoRange(Index),
        Swap(Index, Index),
        Owner(Index, u16),
        Queues(Index, usize),
        Devices(usize),
        Coordinators(u16, Option<u16>),
    }

    fn write() -> impl Strategy<Value = Write> {
        let at = any::<Index>;
        let id = || prop_oneof![6 => 0..4_u16, 1 => any::<u16>()];
        let end = (FRAMES_END - 1)..=(FRAMES_END + 1);
        let frame = || prop_oneof![6 => 0..=FRAMES, 1 => end.clone(), 1 => any::<u64>()];
        let range = (frame(), frame(), id());
        let range =
            range.prop_map(|(start, end, home)| MemoryState { start, end, home: SliceId(home) });
        prop_oneof![
            any::<u32>().prop_map(Write::Epoch),
            (at(), id()).prop_map(|(at, id)| Write::Member(at, id)),
            (0..66_u16).prop_map(Write::MoreMembers),
            (at(), id()).prop_map(|(at, id)| Write::Vcpu(at, id)),
            (0..258_usize).prop_map(Write::Vcpus),
            (at(), frame()).prop_map(|(at, frame)| Write::Start(at, frame)),
            (at(), frame()).prop_map(|(at, frame)| Write::End(at, frame)),
            (at(), id()).prop_map(|(at, id)| Write::Home(at, id)),
            range.prop_map(Write::AnotherRange),
            at().prop_map(Write::NoRange),
            (at(), at()).prop_map(|(one, two)| Write::Swap(one, two)),
            (at(), id()).prop_map(|(at, id)| Write::Owner(at, id)),
            (at(), 0..257_usize).prop_map(|(at, count)| Write::Queues(at, count)),
            (0..33_usize).prop_map(Write::Devices),
            (id(), proptest::option::of(id()))
                .prop_map(|(now, before)| Write::Coordinators(now, before)),
        ]
    }

    fn one<'a, T>(list: &'a mut [T], at: &Index) -> Option<&'a mut T> {
        if list.is_empty() { None } else { Some(at.get_mut(list)) }
    }

    fn apply(state: &mut PlacementState, write: &Write) {
        let PlacementState { epoch, members, vcpus, memory, devices, .. } = state;
        match write {
            Write::Epoch(to) => *epoch = Epoch(*to),
            Write::Member(at, to) => one(members, at).into_iter().for_each(|it| it.0 = *to),
            Write::MoreMembers(count) => members.extend((3..*count).map(SliceId)),
            Write::Vcpu(at, to) => one(vcpus, at).into_iter().for_each(|it| it.0 = *to),
            Write::Vcpus(count) => vcpus.resize(*count, SliceId(1)),
            Write::Start(at, to) => one(memory, at).into_iter().for_each(|it| it.start = *to),
            Write::End(at, to) => one(memory, at).into_iter().for_each(|it| it.end = *to),
            Write::Home(at, to) => one(memory, at).into_iter().for_each(|it| it.home.0 = *to),
            Write::AnotherRange(range) => memory.push(*range),
            Write::NoRange(at) => {
                if !memory.is_empty() {
                    memory.remove(at.index(memory.len()));
                }
            }
            Write::Swap(one, two) => {
                let count = memory.len().max(1);
                let (one, two) = (one.index(count), two.index(count));
                if one < memory.len() && two < memory.len() {
                    memory.swap(one, two);
                }
                members.reverse();
            }
            Write::Owner(at, to) => one(devices, at).into_iter().for_each(|it| it.owner.0 = *to),
            Write::Queues(at, count) => {
                let device = one(devices, at);
                device.into_iter().for_each(|it| it.queues.resize(*count, SliceId(1)));
            }
            Write::Devices(count) => {
                devices.resize(*count, DeviceState { owner: SliceId(0), queues: Vec::new() });
            }
            Write::Coordinators(now, before) => {
                (state.coordinator, state.coordinated_before) =
                    (SliceId(*now), before.map(SliceId));
            }
        }
    }

    /// The same question as the check's, asked part by part and pair by pair.
    fn is_a_placement(state: &PlacementState) -> bool {
        let PlacementState { members, vcpus, memory, devices, .. } = state;
        let member = |slice: &SliceId| members.contains(slice);
        let once = |at: usize| !members[..at].contains(&members[at]);
        let counts = (1..65).contains(&members.len())
            && (1..257).contains(&vcpus.len())
            && devices.len() < 32
            && devices.iter().all(|device| device.queues.len() < 256);
        let apart =
            |one: &MemoryState, two: &MemoryState| one.end <= two.start || two.end <= one.start;
        let before = state.coordinated_before;
        counts
            && member(&state.coordinator)
            && before.is_none_or(|slice| member(&slice) && slice != state.coordinator)
            && (0..members.len()).all(once)
            && vcpus.iter().all(member)
            && devices.iter().all(|it| member(&it.owner) && it.queues.iter().all(member))
            && memory.iter().enumerate().all(|(at, it)| {
                it.start < it.end
                    && it.end <= 1 << 40
                    && member(&it.home)
                    && memory[..at].iter().all(|other| apart(it, other))
            })
    }

    /// What is accepted is the placement that the form says, and is saved as itself from then on.
    fn says_what_it_is(state: &PlacementState) -> Result<(), TestCaseError> {
        let placement = Placement::try_from(state.clone()).unwrap();
        prop_assert_eq!(placement.epoch(), state.epoch);
        prop_assert_eq!(placement.members().len(), state.members.len());
        prop_assert!(state.members.iter().all(|slice| placement.is_member(*slice)));
        prop_assert_eq!(placement.vcpus(), &state.vcpus[..]);
        prop_assert_eq!(placement.coordinator(), state.coordinator);
        for range in &state.memory {
            let homes = [range.start, range.end - 1].map(|gfn| placement.home_of(Gfn(gfn)));
            prop_assert_eq!(homes, [Some(range.home); 2]);
        }
        let pages: u64 = state.memory.iter().map(|range| range.end - range.start).sum();
        let placed = placement.memory().iter().map(|place| place.frames.end - place.frames.start);
        prop_assert_eq!(placed.sum::<u64>(), pages);
        let saved = PlacementState::from(&placement);
        prop_assert_eq!(&saved.devices, &state.devices);
        prop_assert!(saved.members.is_sorted() && saved.memory.is_sorted_by_key(|it| it.start));
        let read: PlacementState = decode(&encode(&saved).unwrap()).unwrap();
        prop_assert_eq!(&read, &saved);
        prop_assert_eq!(Placement::try_from(read).unwrap(), placement);
        Ok(())
    }

    type Lie = (&'static str, fn(&mut PlacementState));

    const LIES: [Lie; 22] = [
        ("members", |state| state.members.clear()),
        ("members", |state| state.members.push(SliceId(1))),
        ("members", |state| state.members.truncate(2)),
        ("members", |state| state.members.extend((3..65).map(SliceId))),
        ("members", |state| state.vcpus[3] = SliceId(3)),
        ("members", |state| state.memory[0].home = SliceId(9)),
        ("members", |state| state.devices[1].owner = SliceId(u16::MAX)),
        ("members", |state| state.devices[0].queues[3] = SliceId(3)),
        ("members", |state| state.coordinator = SliceId(3)),
        ("members", |state| state.coordinated_before = Some(SliceId(3))),
        ("coordinated_before", |state| state.coordinated_before = Some(state.coordinator)),
        ("vcpus", |state| state.vcpus.clear()),
        ("vcpus", |state| state.vcpus.resize(257, SliceId(0))),
        ("memory", |state| state.memory[1].end = state.memory[1].start),
        ("memory", |state| state.memory[1].start = u64::MAX),
        ("memory", |state| state.memory[1].end = 0),
        ("memory", |state| state.memory[0].end += 1),
        ("memory", |state| state.memory.push(state.memory[2])),
        ("memory", |state| state.memory[2].end = FRAMES_END + 1),
        ("memory", |state| state.memory.resize(RANGES_MAX + 1, state.memory[0])),
        ("devices", |state| state.devices.resize(32, state.devices[1].clone())),
        ("devices", |state| state.devices[1].queues.resize(70_000, SliceId(0))),
    ];

    #[test]
    fn forms_that_lie_are_refused() {
        state().check().unwrap();
        for (number, (field, lie)) in LIES.iter().enumerate() {
            let mut state = state();
            lie(&mut state);
            let invalid = state.check().unwrap_err();
            assert_eq!(invalid.field, *field, "lie {number}: {invalid}");
            assert_eq!(Placement::try_from(state.clone()), Err(invalid));
            assert!(matches!(encode(&state), Err(SavedError::Invalid { .. })));
        }
        let mut lost = state();
        lost.devices[0].queues[3] = SliceId(3);
        let message = encode(&lost).unwrap_err().to_string();
        let place = "place queue 3 of device 0: slice3 is not a member";
        assert_eq!(message, format!("saved state of placement: members: {place}"));
    }

    /// All lists as long as they may be, and all numbers as long as they get.
    #[test]
    fn largest_form_fits_its_bound() {
        let members: Vec<SliceId> = (0..64).map(|n| SliceId(u16::MAX - n)).collect();
        let homes = members.iter().copied().cycle();
        // As far up as there are frames, so that each number has its full length.
        let starts = (1..=65_536_u64).map(|n| FRAMES_END - n * 4);
        let range = |(start, home)| MemoryState { start, end: start + 4, home };
        let device = DeviceState { owner: members[0], queues: vec![members[0]; QUEUES_MAX] };
        let state = PlacementState {
            epoch: Epoch(u32::MAX),
            vcpus: homes.clone().take(256).collect(),
            memory: starts.zip(homes).map(range).collect(),
            devices: vec![device; DEVICES_MAX],
            coordinator: members[0],
            coordinated_before: Some(members[1]),
            members,
        };
        let mut fields = Vec::new();
        ciborium::into_writer(&state, &mut fields).unwrap();
        // The bound is no larger than it must be.
        let left = PlacementState::MAX_BYTES.checked_sub(fields.len());
        assert!(left.is_some_and(|left| left < 64), "{left:?}");
        let bytes = encode(&state).unwrap();
        let placement = Placement::try_from(decode::<PlacementState>(&bytes).unwrap()).unwrap();
        assert_eq!(placement.memory().len(), RANGES_MAX);
    }

    #[test]
    fn one_placement_has_one_form() {
        let mut other = state();
        other.members.reverse();
        let last = other.memory.pop().unwrap();
        other.memory.insert(0, MemoryState { start: 50, ..last });
        other.memory.push(MemoryState { end: 50, ..last });
        assert_ne!(other, state());
        let read: PlacementState = decode(&encode(&other).unwrap()).unwrap();
        assert_eq!(PlacementState::from(&Placement::try_from(read).unwrap()), state());
    }

    proptest! {
        #[test]
        fn placements_that_were_made_by_changes_are_read_back(steps in vec(step(), 0..20)) {
            let placement = after(&steps);
            let state = PlacementState::from(&placement);
            let read: PlacementState = decode(&encode(&state).unwrap()).unwrap();
            prop_assert_eq!(Placement::try_from(read).unwrap(), placement);
        }

        /// A form is refused exactly if there is no placement that it says.
        #[test]
        fn fields_of_others_are_a_placement_or_an_error(
            steps in vec(step(), 0..4), writes in vec(write(), 1..4),
        ) {
            let mut state = PlacementState::from(&after(&steps));
            writes.iter().for_each(|write| apply(&mut state, write));
            let good = is_a_placement(&state);
            prop_assert_eq!(Placement::try_from(state.clone()).is_ok(), good);
            prop_assert_eq!(encode(&state).is_ok(), good);
            if good {
                says_what_it_is(&state)?;
            }
        }

        #[test]
        fn damaged_bytes_are_a_placement_or_an_error(
            writes in vec((any::<Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = encode(&state()).unwrap();
            for (at, to) in writes {
                *at.get_mut(&mut bytes) = to;
            }
            if let Ok(state) = decode::<PlacementState>(&bytes) {
                prop_assert!(is_a_placement(&state));
                says_what_it_is(&state)?;
            }
        }
    }
}
