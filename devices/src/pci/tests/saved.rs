//! The bus in another process: a guest that goes on there sees no difference.

use super::*;
use crate::pci::MsixTableState;
use crate::saved::testing::{bring_over, damage};
use crate::saved::{FunctionState, PciRootState, TransportState};
use migrate::{Saved, SavedState};

fn apply(machine: &mut Machine, (address, value, width): (u64, [u8; 8], usize)) {
    // Some of the writes are changes on the host's side.
    let device = DeviceId(u16::from(value[7] % 5));
    match value[6] {
        0xa0..0xb0 => {
            let change = net::link(value[0] & 1 != 0);
            machine.root.change(device, &change, &mut machine.effects);
        }
        0xb0..0xc0 => {
            let change = blk::resized(u64::from(value[0]));
            machine.root.change(device, &change, &mut machine.effects);
        }
        0xc0..0xc8 => {
            machine.root.change(device, &DeviceChange::NeedsReset, &mut machine.effects);
        }
        _ => machine.write(address, &value[..1 << width]),
    }
}

fn steps(most: usize) -> impl Strategy<Value = Vec<(u64, [u8; 8], usize)>> {
    prop::collection::vec((address(), value(), 0_usize..4), 0..most)
}

/// Routes, doorbells and active devices that the effects of a machine's life have led to.
fn led_to(effects: &[PciEffect]) -> Vec<PciEffect> {
    let mut all: Vec<PciEffect> = Vec::new();
    for effect in effects {
        match effect {
            PciEffect::MsixChanged { device, vector, route } => {
                all.retain(|old| {
                    !matches!(old, PciEffect::MsixChanged { device: d, vector: v, .. }
                    if (d, v) == (device, vector))
                });
                if route.is_some() {
                    all.push(effect.clone());
                }
            }
            PciEffect::Activated { .. } => all.push(effect.clone()),
            PciEffect::Reset { device } => all.retain(
                |old| !matches!(old, PciEffect::Activated { device: d, .. } if d == device),
            ),
            _ => {}
        }
    }
    all
}

proptest! {
    #[test]
    fn restored_bus_goes_on_as_the_saved_one(
        on in any::<bool>(),
        before in steps(150),
        after in steps(80),
    ) {
        let (mut one, mut two) = (Machine::new(), Machine::new());
        for slot in 1..5 {
            if on {
                one.activate(slot);
            }
        }
        for step in before {
            apply(&mut one, step);
        }
        bring_over(&one.root, &mut two.root);
        prop_assert!(one.root == two.root);
        // What a slice is told to do is what it would have done by now.
        let in_force = two.root.in_force();
        let wanted = led_to(&one.effects);
        for effect in &wanted {
            prop_assert!(in_force.contains(effect), "{:?}", effect);
        }
        let moved = |effect: &&PciEffect| !matches!(effect, PciEffect::DoorbellsMoved { .. });
        prop_assert_eq!(in_force.iter().filter(moved).count(), wanted.len());
        one.effects.clear();
        for step in after {
            apply(&mut one, step);
            apply(&mut two, step);
            prop_assert_eq!(one.read::<8>(step.0), two.read::<8>(step.0));
        }
        prop_assert!(one.root == two.root);
        prop_assert_eq!(one.effects, two.effects);
    }
}

/// A machine with one device less, more queues, another kind, other features.
fn others() -> Vec<PciRoot> {
    let read_only = blk::shape(&DiskShape { read_only: true, ..disk_shape() }, 4);
    let (disk, rng, console) = (|| disk(4), rng::shape(), console::shape());
    [
        vec![disk(), nic(), rng.clone()],
        vec![disk(), nic(), rng.clone(), console.clone(), console.clone()],
        vec![blk::shape(&disk_shape(), 5), nic(), rng.clone(), console.clone()],
        vec![blk::shape(&disk_shape(), 3), nic(), rng.clone(), console.clone()],
        vec![disk(), nic(), console.clone(), rng.clone()],
        vec![read_only, nic(), rng, console],
    ]
    .map(|shapes| PciRoot::new(shapes).unwrap())
    .into()
}

#[test]
fn machine_of_another_configuration_is_refused_and_nothing_changes() {
    let mut machine = Machine::new();
    for slot in 1..5 {
        machine.activate(slot);
    }
    let state = machine.root.save();
    for mut other in others() {
        let before = other.clone();
        other.restore(state.clone()).unwrap_err();
        assert!(other == before);
    }
    Machine::new().root.restore(state).unwrap();
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut machine = Machine::new();
    machine.activate(1);
    let good = machine.root.save();
    let with = |change: &dyn Fn(&mut FunctionState)| {
        let mut state = good.clone();
        change(&mut state.functions[0]);
        state
    };
    let transport = |change: &dyn Fn(&mut TransportState)| with(&|it| change(&mut it.transport));
    let msix = |change: &dyn Fn(&mut MsixTableState)| with(&|it| change(&mut it.msix));
    let bad = [
        PciRootState { bridge_command: 1, ..good.clone() },
        PciRootState { functions: vec![good.functions[0].clone(); 32], ..good.clone() },
        with(&|it| it.command |= 1),
        with(&|it| it.bar |= 0x100),
        with(&|it| it.config.type_id += 1),
        with(&|it| it.config.bytes.truncate(7)),
        with(&|it| it.config.bytes.push(0)),
        msix(&|it| it.entries.truncate(4)),
        msix(&|it| it.entries.clear()),
        msix(&|it| it.entries[0].address = 1),
        transport(&|it| it.status |= 16),
        transport(&|it| it.status = 4),
        transport(&|it| it.accepted |= 1 << 50),
        transport(&|it| it.accepted = 0),
        transport(&|it| it.offered = 0),
        transport(&|it| it.config_vector = Some(5)),
        transport(&|it| it.queues.truncate(3)),
        transport(&|it| it.queues.resize(256, it.queues[0])),
        transport(&|it| it.queues[0].vector = Some(0xffff)),
        transport(&|it| it.queues[0].size = 0),
        transport(&|it| it.queues[0].size = 512),
        transport(&|it| it.queues[0].descriptors = 8),
    ];
    for (number, state) in bad.into_iter().enumerate() {
        let mut fresh = Machine::new();
        assert!(fresh.root.restore(state).is_err(), "{number}");
        assert!(fresh.root == root(), "{number}: nothing has changed");
    }
    let mut fresh = Machine::new();
    fresh.root.restore(good).unwrap();
}

#[test]
fn configuration_changes_only_where_the_host_may_change_it() {
    let machine = Machine::new();
    let with = |device: usize, bytes: &[u8]| {
        let mut state = machine.root.save();
        state.functions[device].config.bytes = bytes.to_vec();
        Machine::new().root.restore(state)
    };
    with(0, &[9; 8]).unwrap();
    with(1, &[0, 0]).unwrap();
    for bytes in [&[2, 0][..], &[1, 1], &[1], &[1, 0, 0], &[0; 9]] {
        with(1, bytes).unwrap_err();
    }
    with(2, &[0]).unwrap_err();
    let DeviceChange::Config { type_id, at, bytes } = net::link(false) else { panic!() };
    for (at, bytes) in [(at + 2, bytes.clone()), (at, vec![2, 0]), (at, vec![0; 9]), (0, bytes)] {
        let mut other = Machine::new();
        let change = DeviceChange::Config { type_id, at, bytes };
        other.root.change(DeviceId(1), &change, &mut other.effects);
        assert!(other.root == machine.root && other.effects.is_empty(), "{change:?}");
    }
}

#[test]
fn damaged_bytes_do_no_harm() {
    let shapes = || PciRoot::new(vec![console::shape()]).unwrap();
    let mut root = shapes();
    let mut effects = Vec::new();
    root.write(Machine::ecam(1, 4), &[6, 0], &mut effects);
    for to in [0x01, 0x18, 0x80] {
        damage(&root.save(), to, |state| {
            let mut fresh = shapes();
            if fresh.restore(state).is_ok() {
                for slot in 0..3 {
                    fresh.write(PCI_WINDOW_START + 20, &[15], &mut Vec::new());
                    fresh.read(Machine::ecam(slot, 0x10), &mut [0; 4]);
                }
                assert!(fresh.in_force().len() <= 5);
            }
        });
    }
}

#[test]
fn largest_bus_fits_its_bound() {
    let mut state = PciRoot::new(vec![disk(255); 31]).unwrap().save();
    for function in &mut state.functions {
        for queue in &mut function.transport.queues {
            queue.vector = Some(255);
            (queue.descriptors, queue.driver_area, queue.device_area) = (!15, !1, !3);
        }
        for entry in &mut function.msix.entries {
            (entry.address, entry.data) = (!3, u32::MAX);
        }
    }
    let bytes = migrate::saved::encode(&state).unwrap().len();
    assert!(bytes * 3 > PciRootState::MAX_BYTES * 2, "{bytes}: the bound is not tight");
}
