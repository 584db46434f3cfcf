mod saved;

use super::*;
use crate::back_end::{DiskShape, NicShape};
use crate::layout::{ECAM_START, PCI_WINDOW_END, PCI_WINDOW_START};
use crate::traits::DeliveryMode;
use crate::virtio::{DeviceChange, DeviceShape, F_VERSION_1, QueueSetup, blk, console, net, rng};
use proptest::prelude::*;

const BAR_BYTES: u64 = 0x1_0000;
/// Parts of the BAR as the module documentation of the function gives them.
const NOTIFY: u64 = 0x3000;
const TABLE: u64 = 0x4000;

fn disk_shape() -> DiskShape {
    DiskShape { sectors: 2048, block_bytes: 512, read_only: false, discard: true, id: [7; 20] }
}

fn disk(queues: u16) -> DeviceShape {
    blk::shape(&disk_shape(), queues)
}

fn nic() -> DeviceShape {
    net::shape(&NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 2, offloads: 1 })
}

fn root() -> PciRoot {
    PciRoot::new(vec![disk(4), nic(), rng::shape(), console::shape()]).unwrap()
}

/// A replica with its effects, and what a driver does with it.
struct Machine {
    root: PciRoot,
    effects: Vec<PciEffect>,
}

impl Machine {
    fn new() -> Self {
        Self { root: root(), effects: Vec::new() }
    }

    fn ecam(slot: u64, register: u64) -> u64 {
        ECAM_START + (slot << 15) + register
    }

    fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut data = [0x5a; N];
        self.root.read(address, &mut data);
        data
    }

    fn read32(&self, address: u64) -> u32 {
        u32::from_le_bytes(self.read(address))
    }

    fn write(&mut self, address: u64, data: &[u8]) {
        self.root.write(address, data, &mut self.effects);
    }

    fn write32(&mut self, address: u64, value: u32) {
        self.write(address, &value.to_le_bytes());
    }

    fn bar(&self, slot: u64) -> u64 {
        u64::from(self.read32(Self::ecam(slot, 0x10)) & !0xf)
    }

    fn switch_on(&mut self, slot: u64) {
        self.write(Self::ecam(slot, 4), &[6, 0]);
    }

    /// Offset of the capability with this id, and for virtio of this type.
    fn capability(&self, slot: u64, id: u8, kind: u8) -> u64 {
        let [mut at] = self.read(Self::ecam(slot, 0x34));
        loop {
            assert_ne!(at, 0, "no such capability");
            let [this, next, _, its_kind] = self.read(Self::ecam(slot, u64::from(at)));
            if this == id && (id != 9 || its_kind == kind) {
                return u64::from(at);
            }
            at = next;
        }
    }

    /// Brings a device up with queue 0 of 16 entries, as a driver does.
    fn activate(&mut self, slot: u64) {
        self.switch_on(slot);
        let common = self.bar(slot);
        self.write(common + 20, &[3]);
        self.write32(common + 8, 1);
        self.write32(common + 12, u32::try_from(F_VERSION_1 >> 32).unwrap());
        self.write(common + 16, &[0, 0]);
        self.write(common + 20, &[11]);
        self.write(common + 24, &[16, 0]);
        self.write(common + 26, &[1, 0]);
        for (field, area) in [(32, 0x1000), (40, 0x2000), (48, 0x3000)] {
            self.write32(common + field, area);
        }
        self.write(common + 28, &[1, 0]);
        self.write(common + 20, &[15]);
    }
}

#[test]
fn bus_has_a_bridge_the_devices_and_nothing_else() {
    let machine = Machine::new();
    let ids: Vec<u32> = (0..6).map(|slot| machine.read32(Machine::ecam(slot, 0))).collect();
    let expected = [0x0008_1b36, 0x1042_1af4, 0x1041_1af4, 0x1044_1af4, 0x1043_1af4, u32::MAX];
    assert_eq!(ids, expected);
    assert_eq!(machine.read32(Machine::ecam(1, 0x1000)), u32::MAX, "function 1");
    assert_eq!(machine.read::<8>(Machine::ecam(1, 0xffc)), [0xff; 8], "over the end");
    assert_eq!(machine.read::<4>(Machine::ecam(1, 0x100)), [0; 4], "no extended capabilities");
    assert_eq!(machine.read::<1>(Machine::ecam(1, 0x3d)), [0], "no interrupt pin");
    assert_eq!(machine.read32(Machine::ecam(1, 8)), 0x0180_0001, "class and revision");
}

#[test]
fn bar_can_be_sized_moved_and_switched_off() {
    let mut machine = Machine::new();
    let register = Machine::ecam(1, 0x10);
    let base = machine.bar(1);
    assert!(base >= PCI_WINDOW_START && base.is_multiple_of(BAR_BYTES));
    assert_eq!(machine.read32(base), u32::MAX, "not decoded yet");
    machine.write32(register, u32::MAX);
    assert_eq!(machine.read32(register), 0xffff_0000);
    machine.write32(register, u32::try_from(base).unwrap());
    assert!(machine.effects.is_empty());
    machine.switch_on(1);
    assert_eq!(machine.effects, [PciEffect::DoorbellsMoved { device: DeviceId(0) }]);
    assert_eq!(machine.read::<2>(base + 18), [4, 0], "number of queues");
    assert_eq!(machine.root.doorbells().len(), 4);
    // Elsewhere in the window, and then outside, where the bridge does not lead.
    machine.write32(register, 0xe800_0000);
    assert_eq!(machine.read::<2>(0xe800_0000 + 18), [4, 0]);
    assert_eq!(machine.read32(base), u32::MAX);
    assert_eq!(machine.root.doorbells()[1].address, 0xe800_0000 + NOTIFY + 4);
    machine.write32(register, 0xf000_0000);
    assert_eq!(machine.read32(0xf000_0000), u32::MAX);
    assert!(machine.root.doorbells().is_empty());
    assert_eq!(machine.root.doorbell(0xf000_0000 + NOTIFY, &[0, 0]), None);
}

#[test]
fn bars_one_over_the_other_are_the_first_device_s() {
    let mut machine = Machine::new();
    let base = machine.bar(1);
    machine.switch_on(1);
    machine.switch_on(3);
    machine.write32(Machine::ecam(3, 0x10), u32::try_from(base).unwrap());
    assert_eq!(machine.read::<2>(base + 18), [4, 0]);
    let bells = machine.root.doorbells();
    assert!(bells.len() == 4 && bells.iter().all(|bell| bell.device == DeviceId(0)));
}

#[test]
fn capabilities_lead_to_the_registers() {
    let mut machine = Machine::new();
    machine.switch_on(2);
    // Common, notify, ISR, device: all in BAR 0.
    for (kind, offset, length) in [(1, 0, 60), (2, 0x3000, 20), (3, 0x1000, 1), (4, 0x2000, 12)] {
        let at = machine.capability(2, 9, kind);
        let place = machine.read::<16>(Machine::ecam(2, at));
        let word = |from: usize| u32::from_le_bytes(place[from..from + 4].try_into().unwrap());
        assert_eq!((place[4], word(8), word(12)), (0, offset, length), "type {kind}");
    }
    let notify = machine.capability(2, 9, 2);
    assert_eq!(machine.read32(Machine::ecam(2, notify + 16)), 4, "multiplier");
    let base = machine.bar(2);
    assert_eq!(machine.read::<6>(base + 0x2000), [2, 0, 0, 0, 0, 1], "MAC");
    assert_eq!(machine.read::<1>(base + 0x1000), [0], "ISR");
    let msix = machine.capability(2, 0x11, 0);
    assert_eq!(
        machine.read::<2>(Machine::ecam(2, msix + 2)),
        [5, 0],
        "five queues, one more vector"
    );
    assert_eq!(machine.root.vectors(DeviceId(1)), 6);
    assert_eq!(machine.read32(Machine::ecam(2, msix + 4)), 0x4000);
}

#[test]
fn driver_activates_and_resets_a_device() {
    let mut machine = Machine::new();
    machine.activate(1);
    let setup = QueueSetup {
        size: 16,
        descriptors: 0x1000,
        driver_area: 0x2000,
        device_area: 0x3000,
        vector: Some(MsixVector(1)),
    };
    let activation = Activation { features: F_VERSION_1, queues: vec![(QueueIndex(0), setup)] };
    let activated = PciEffect::Activated { device: DeviceId(0), activation };
    assert_eq!(machine.effects.pop(), Some(activated));
    machine.effects.clear();
    let common = machine.bar(1);
    machine.write(common + 20, &[0]);
    assert_eq!(machine.effects, [PciEffect::Reset { device: DeviceId(0) }]);
    assert_eq!(machine.read::<1>(common + 20), [0]);
}

/// Every slice has such a replica, the one with the back end too, and starts workers by what it says.
#[test]
fn queue_changed_while_the_device_runs_stays_what_it_was_on_every_replica() {
    let mut machines = [Machine::new(), Machine::new()];
    for machine in &mut machines {
        machine.activate(1);
        let (before, common) = (machine.root.clone(), machine.bar(1));
        machine.effects.clear();
        for queue in 0..6_u16 {
            machine.write(common + 22, &queue.to_le_bytes());
            machine.write(common + 24, &256_u16.to_le_bytes());
            for field in (32..56).step_by(4) {
                machine.write32(common + field, 0xffff_0000);
            }
            machine.write(common + 28, &[1, 0]);
            machine.write(common + 28, &[0, 0]);
        }
        machine.write32(common + 8, 0);
        machine.write32(common + 12, u32::MAX);
        machine.write(common + 20, &[15]);
        assert_eq!(machine.effects, [], "no worker is started, stopped or told");
        machine.write(common + 22, &[0, 0]);
        let kept = [24, 28, 32, 40, 48].map(|field| machine.read::<2>(common + field));
        assert_eq!(kept, [16, 1, 0x1000, 0x2000, 0x3000].map(u16::to_le_bytes));
        assert_eq!(machine.root.doorbells(), before.doorbells());
    }
    let [one, two] = machines;
    assert!(one.root == two.root);
}

#[test]
fn configuration_of_a_device_cannot_be_written() {
    let mut machine = Machine::new();
    for slot in 1..=4 {
        machine.activate(slot);
        let (base, before) = (machine.bar(slot), machine.root.clone());
        machine.effects.clear();
        // The device's own, status of interrupts, pending bits, and what is none of them.
        for part in [0x1000, 0x2000, 0x5000, 0x6000, BAR_BYTES - 8] {
            for offset in (0..64_u64).filter(|offset| part + offset < BAR_BYTES) {
                machine.write(base + part + offset, &[0xff]);
            }
            machine.write(base + part, &[0xff; 8]);
        }
        assert!(machine.root == before && machine.effects.is_empty(), "slot {slot}");
    }
}

#[test]
fn doorbells_are_heard_and_change_nothing() {
    let mut machine = Machine::new();
    machine.switch_on(1);
    let before = machine.root.clone();
    machine.effects.clear();
    for bell in machine.root.doorbells() {
        let (address, heard) = (bell.address, (bell.device, bell.queue));
        for width in [2, 4] {
            assert_eq!(machine.root.doorbell(address, &[0xee; 4][..width]), Some(heard));
        }
        machine.write(address, &[1, 0]);
    }
    let base = machine.bar(1);
    assert_eq!(machine.root.doorbell(base + NOTIFY + 2, &[0, 0]), None, "between two");
    assert_eq!(machine.root.doorbell(base + NOTIFY + 16, &[0, 0]), None, "a fifth queue");
    assert_eq!(machine.root.doorbell(base, &[0, 0]), None);
    assert!(machine.effects.is_empty() && machine.root == before);
}

#[test]
fn msix_entries_are_told_when_they_change() {
    let mut machine = Machine::new();
    machine.switch_on(1);
    machine.effects.clear();
    let (base, msix) = (machine.bar(1), machine.capability(1, 0x11, 0));
    let entry = base + TABLE + 2 * 16;
    machine.write32(entry, 0xfee0_1000);
    machine.write32(entry + 8, 0x45);
    machine.write32(entry + 12, 0);
    assert!(machine.effects.is_empty(), "MSI-X is off");
    let control = Machine::ecam(1, msix + 2);
    let (device, vector) = (DeviceId(0), MsixVector(2));
    let mode = DeliveryMode::Fixed;
    let message = InterruptMessage { destination: 1, logical: false, mode, vector: 0x45 };
    for (value, route) in [(0x80, Some(message)), (0xc0, None), (0x80, Some(message)), (0, None)] {
        machine.effects.clear();
        machine.write(control, &[0xff, value]);
        assert_eq!(machine.effects, [PciEffect::MsixChanged { device, vector, route }]);
        assert_eq!(machine.read::<2>(control), [4, value], "the size stays");
    }
    assert_eq!(machine.read32(base + 0x5000), 0, "pending bits");
}

#[test]
fn configuration_window_reaches_registers_and_doorbells() {
    let mut machine = Machine::new();
    machine.switch_on(1);
    machine.effects.clear();
    let window = Machine::ecam(1, machine.capability(1, 9, 5));
    let point = |machine: &mut Machine, offset: u32, length: u32| {
        machine.write(window + 4, &[0]);
        machine.write32(window + 8, offset);
        machine.write32(window + 12, length);
    };
    point(&mut machine, 18, 2);
    assert_eq!(machine.read::<2>(window + 16), [4, 0]);
    point(&mut machine, 22, 2);
    machine.write(window + 16, &[3, 0]);
    assert_eq!(machine.read::<2>(machine.bar(1) + 22), [3, 0], "queue select");
    point(&mut machine, 0x3008, 2);
    machine.write(window + 16, &[2, 0]);
    let queue = QueueIndex(2);
    assert_eq!(machine.effects, [PciEffect::Doorbell { device: DeviceId(0), queue }]);
    // Another width than said, a crooked offset, beyond the BAR: nothing.
    let before = machine.root.clone();
    machine.write(window + 16, &[2]);
    assert!(machine.root == before && machine.effects.len() == 1);
    for (offset, length) in [(17, 2), (0x1_0000, 4), (0xffff_fffc, 4), (0, 8), (0, 0)] {
        point(&mut machine, offset, length);
        machine.write(window + 16, &[1, 0]);
        assert_eq!(machine.read::<2>(window + 16), [0, 0], "{offset:#x}");
    }
}

#[test]
fn changes_of_the_host_reach_a_driver_that_listens() {
    let mut machine = Machine::new();
    let change = |machine: &mut Machine, device: u16, change: DeviceChange| {
        machine.effects.clear();
        machine.root.change(DeviceId(device), &change, &mut machine.effects);
        machine.effects.clone()
    };
    assert!(change(&mut machine, 0, blk::resized(4096)).is_empty(), "nobody listens");
    machine.activate(1);
    let base = machine.bar(1);
    assert_eq!(machine.read::<8>(base + 0x2000), 4096_u64.to_le_bytes());
    let told = [PciEffect::ConfigChanged { device: DeviceId(0), vector: MsixVector(0) }];
    assert_eq!(change(&mut machine, 0, blk::resized(8192)), told);
    assert!(change(&mut machine, 0, blk::resized(8192)).is_empty(), "no news");
    assert!(change(&mut machine, 0, net::link(false)).is_empty(), "a disk");
    assert_eq!(machine.read::<1>(base + 21), [2], "generation");
    assert_eq!(change(&mut machine, 0, DeviceChange::NeedsReset), told);
    assert_eq!(machine.read::<1>(base + 20), [15 | 64]);
    machine.switch_on(2);
    change(&mut machine, 1, net::link(false));
    assert_eq!(machine.read::<2>(machine.bar(2) + 0x2006), [0, 0]);
    assert!(change(&mut machine, 9, DeviceChange::NeedsReset).is_empty(), "no such device");
}

#[test]
fn machines_that_cannot_be_are_refused() {
    let many = vec![rng::shape(); 32];
    assert_eq!(PciRoot::new(many), Err(PciError::TooManyDevices { devices: 32 }));
    assert!(PciRoot::new(vec![rng::shape(); 31]).is_ok());
    for queues in [0, 256] {
        let error = PciError::Queues { device: DeviceId(0), queues: usize::from(queues) };
        assert_eq!(PciRoot::new(vec![disk(queues)]), Err(error));
    }
    let most = PciRoot::new(vec![disk(255)]).unwrap();
    assert_eq!(most.vectors(DeviceId(0)), 256);
}

/// Addresses where something is, and some where nothing is.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0_u64..6, 0_u64..0x100).prop_map(|(slot, register)| Machine::ecam(slot, register)),
        6 => (0_u64..4, 0_u64..0x40).prop_map(|(n, at)| PCI_WINDOW_START + n * BAR_BYTES + at),
        2 => (0_u64..4, 0_u64..0x60)
            .prop_map(|(n, at)| PCI_WINDOW_START + n * BAR_BYTES + TABLE + at),
        1 => (0_u64..4, 0_u64..BAR_BYTES).prop_map(|(n, at)| PCI_WINDOW_START + n * BAR_BYTES + at),
        1 => ECAM_START..PCI_WINDOW_END + 0x1000,
        1 => any::<u64>(),
    ]
}

fn value() -> impl Strategy<Value = [u8; 8]> {
    let some = [0, 1, 3, 6, 11, 15, 16, 0x1000, 0xfee0_0000, 0xffff_ffff, u64::MAX];
    prop_oneof![prop::sample::select(some.to_vec()).prop_map(u64::to_le_bytes), any::<[u8; 8]>(),]
}

proptest! {
    #[test]
    fn replicas_given_the_same_writes_are_equal_and_survive_anything(
        on in any::<bool>(),
        writes in prop::collection::vec((address(), value(), 0_usize..4), 0..200),
    ) {
        let (mut one, mut two) = (Machine::new(), Machine::new());
        if on {
            for slot in 1..5 {
                one.activate(slot);
                two.activate(slot);
            }
        }
        for (address, value, width) in writes {
            let data = &value[..1 << width];
            let bell = one.root.doorbell(address, data);
            let (before, effects) = (bell.map(|_| one.root.clone()), one.effects.len());
            one.write(address, data);
            two.write(address, data);
            if let Some(before) = before {
                prop_assert!(one.root == before && one.effects.len() == effects);
            }
            // Reading changes nothing, whatever is read on one side only.
            one.read::<8>(address);
        }
        prop_assert!(one.root == two.root);
        prop_assert_eq!(&one.effects, &two.effects);
        for bell in one.root.doorbells() {
            let heard = one.root.doorbell(bell.address, &[0, 0]);
            prop_assert_eq!(heard, Some((bell.device, bell.queue)));
            prop_assert!(one.root.claims(bell.address));
        }
    }
}
