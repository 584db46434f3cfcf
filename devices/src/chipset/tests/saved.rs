//! The chipset in another process: a guest that goes on there sees no difference.

use super::*;
use crate::cmos::CmosState;
use crate::saved::testing::{bring_over, damage};
use crate::saved::{ChipsetState, EventBlockState};
use migrate::Saved;

/// What a guest, the outside or a vCPU does.
#[derive(Clone, Debug)]
enum Step {
    Out(u16, Vec<u8>),
    In(u16, usize),
    Store(u64, u32),
    Load(u64),
    Input(Vec<u8>),
    Line(u8, bool),
    End(u8),
    Button,
    Generation,
    Plug(u32, bool),
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        3 => 0x3f8_u16..0x400,
        2 => 0x600_u16..0x60c,
        2 => prop::sample::select(vec![0x610, 0x611, 0x620, 0x624, 0x628, 0x62c, 0x630]),
        1 => prop::sample::select(vec![0x21, 0xa1, 0x40, 0x42, 0x43, 0x61, 0x70, 0x71]),
        1 => any::<u16>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 1..most);
    let register = prop::sample::select(vec![0_u64, 0x10, 0x40]);
    let value = prop_oneof![0_u32..0x40, 0_u32..0x2_0000, any::<u32>()];
    prop_oneof![
        4 => (port(), bytes(5)).prop_map(|(port, data)| Step::Out(port, data)),
        3 => (port(), 1_usize..5).prop_map(|(port, count)| Step::In(port, count)),
        3 => (register.clone(), value).prop_map(|(at, value)| Step::Store(at, value)),
        1 => register.prop_map(Step::Load),
        1 => bytes(100).prop_map(Step::Input),
        1 => (0_u8..26, any::<bool>()).prop_map(|(pin, high)| Step::Line(pin, high)),
        1 => any::<u8>().prop_map(Step::End),
        1 => Just(Step::Button),
        1 => Just(Step::Generation),
        1 => (0_u32..3, any::<bool>()).prop_map(|(vcpu, add)| Step::Plug(vcpu, add)),
    ]
}

/// Runs a step and gives what can be seen of it.
fn run(chipset: &Chipset, step: &Step) -> Vec<u8> {
    let base = u64::from(IOAPIC_BASE);
    match step {
        Step::Out(port, data) => chipset.pio_write(*port, data),
        Step::In(port, count) => {
            let mut data = vec![0; *count];
            chipset.pio_read(*port, &mut data);
            // The time of day is the host's.
            let mut index = [0];
            chipset.pio_read(0x70, &mut index);
            if (0x6e..=0x71).contains(port) && (index[0] < 0x0a || index[0] == 0x32) {
                data.fill(0);
            }
            return data;
        }
        Step::Store(at, value) => chipset.mmio_write(base + at, &value.to_le_bytes()),
        Step::Load(at) => {
            let mut data = [0; 4];
            chipset.mmio_read(base + at, &mut data);
            return data.to_vec();
        }
        Step::Input(bytes) => return vec![u8::try_from(chipset.console_input(bytes)).unwrap()],
        Step::Line(pin, high) => chipset.set_line(*pin, *high),
        Step::End(vector) => chipset.end_of_interrupt(*vector),
        Step::Plug(vcpu, add) => {
            let asked = if *add { chipset.add_vcpu(*vcpu, 1) } else { chipset.remove_vcpu(*vcpu) };
            return vec![u8::from(asked.is_ok())];
        }
        Step::Generation => return vec![u8::from(chipset.notify_generation())],
        Step::Button => return vec![u8::from(chipset.press_power_button())],
    }
    Vec::new()
}

/// Output, interrupts and ends so far.
fn seen(world: &World) -> (Vec<u8>, Vec<InterruptMessage>, Vec<ShutdownCause>) {
    let output = lock(&world.output).clone();
    (output, lock(&world.messages).clone(), lock(&world.causes).clone())
}

proptest! {
    #[test]
    fn restored_chipset_goes_on_as_the_saved_one(
        before in prop::collection::vec(step(), 0..120),
        after in prop::collection::vec(step(), 0..120),
    ) {
        let ((here, one), (there, mut two)) = (machine_with(Some(1)), machine_with(Some(2)));
        for step in &before {
            run(&one, step);
        }
        bring_over(&one, &mut two);
        prop_assert_eq!(seen(&there), (Vec::new(), Vec::new(), Vec::new()), "at restoring");
        lock(&here.messages).clear();
        lock(&here.output).clear();
        lock(&here.causes).clear();
        for step in &after {
            prop_assert_eq!(run(&one, step), run(&two, step), "{:?}", step);
        }
        prop_assert_eq!(one.save(), two.save());
        prop_assert_eq!(seen(&here), seen(&there));
    }
}

#[test]
fn chipset_refuses_a_bad_part_as_a_whole() {
    let (_, mut chipset) = machine();
    chipset.pio_write(0x21, &[0x5a]);
    let before = chipset.save();
    let cmos = CmosState { index: 0, memory: vec![1; 127] };
    let bad = ChipsetState { cmos, interrupt_masks: [1, 2], ..before.clone() };
    assert_eq!(chipset.restore(bad).unwrap_err().field, "memory");
    assert_eq!(chipset.save(), before);
}

/// The generation of a restored guest: told before it runs, in whatever state it was stopped.
#[test]
fn notification_of_another_generation_survives_until_the_guest_listens() {
    const MASKED: u32 = 1 << 16;
    for (enable, low) in [(2, 0x39), (2, 0x39 | MASKED), (0, 0x39), (0, 0x39 | MASKED)] {
        let ((_, one), (world, mut two)) = (machine(), machine());
        one.pio_write(GPE_PORT + 1, &[enable]);
        route(&one, SCI_IRQ, low, 1);
        bring_over(&one, &mut two);
        assert_eq!(two.notify_generation(), enable == 2);
        // Stopped again before it has run, and restored once more.
        let (third_world, mut three) = machine();
        bring_over(&two, &mut three);
        for (world, chipset) in [(world, two), (third_world, three)] {
            let before = lock(&world.messages).len();
            route(&chipset, SCI_IRQ, 0x39, 1);
            chipset.pio_write(GPE_PORT + 1, &[2]);
            let sent = enable == 2 && low & MASKED == 0;
            // What has been sent is in the state of its vCPU.
            assert_eq!(lock(&world.messages).len() - before, usize::from(!sent));
            assert_eq!(inb(&chipset, GPE_PORT), 2);
        }
    }
}

#[test]
fn event_about_vcpus_is_refused_where_none_can_come() {
    let (_, mut chipset) = machine();
    let before = chipset.save();
    let events = EventBlockState { status: 1, enable: 0 };
    let bad = ChipsetState { events, ..before.clone() };
    assert_eq!(chipset.restore(bad).unwrap_err().field, "events");
    assert_eq!(chipset.save(), before);
}

#[test]
fn chipset_of_another_configuration_is_refused_as_a_whole() {
    for (one, two) in [(None, Some(1)), (Some(1), None)] {
        let ((_, other), (_, mut chipset)) = (machine_with(one), machine_with(two));
        other.pio_write(0x21, &[0x5a]);
        let before = chipset.save();
        assert_eq!(chipset.restore(other.save()).unwrap_err().field, "hotplug");
        assert_eq!(chipset.save(), before);
    }
}

#[test]
fn damaged_bytes_do_no_harm() {
    let (_, chipset) = machine();
    damage(&chipset.save(), 0x04, |state| {
        let (_, mut fresh) = machine();
        fresh.restore(state).unwrap();
        fresh.pio_read(0x3f8, &mut [0; 8]);
    });
}
