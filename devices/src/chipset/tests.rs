//! The devices as a guest sees them, through the bus.

mod saved;

use super::*;
use crate::hotplug::PlugState;
use crate::serial::INPUT_LIMIT;
use crate::traits::DeliveryMode;
use proptest::prelude::*;
use std::io;

#[derive(Default)]
struct World {
    output: Mutex<Vec<u8>>,
    messages: Mutex<Vec<InterruptMessage>>,
    causes: Mutex<Vec<ShutdownCause>>,
}

impl InterruptSink for World {
    fn deliver(&self, message: InterruptMessage) {
        lock(&self.messages).push(message);
    }
}

impl ShutdownSink for World {
    fn shutdown(&self, cause: ShutdownCause) {
        lock(&self.causes).push(cause);
    }
}

impl GuestClock for World {
    fn ticks(&self) -> u64 {
        2_000_000_000
    }
    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

struct Output(Arc<World>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0.output).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn machine() -> (Arc<World>, Chipset) {
    machine_with(None)
}

/// With so many vCPUs present, where others can come.
fn machine_with(present: Option<u32>) -> (Arc<World>, Chipset) {
    let world = Arc::new(World::default());
    let chipset = Chipset::new(ChipsetConfig {
        vcpus: 2,
        hotplug: present.map(|present| HotplugConfig { present, vcpu_nodes: vec![0, 1], nodes: 2 }),
        console: Box::new(Output(Arc::clone(&world))),
        interrupts: Arc::<World>::clone(&world),
        shutdown: Arc::<World>::clone(&world),
        clock: Arc::<World>::clone(&world),
    });
    (world, chipset)
}

fn inb(chipset: &Chipset, port: u16) -> u8 {
    let mut byte = [0x5a];
    chipset.pio_read(port, &mut byte);
    byte[0]
}

/// Routes a pin of the IOAPIC through its registers.
fn route(chipset: &Chipset, pin: u8, low: u32, destination: u8) {
    let base = u64::from(IOAPIC_BASE);
    chipset.mmio_write(base, &[0x11 + 2 * pin]);
    chipset.mmio_write(base + 0x10, &[0, 0, 0, destination]);
    chipset.mmio_write(base, &[0x10 + 2 * pin]);
    chipset.mmio_write(base + 0x10, &low.to_le_bytes());
}

#[test]
fn serial_output_and_debug_port_reach_the_console() {
    let (world, chipset) = machine();
    chipset.pio_write(0x3f8, b"a");
    chipset.pio_write(0xe9, b"b");
    assert_eq!(*lock(&world.output), b"ab");
    assert_eq!(inb(&chipset, 0xe9), 0xe9);
    assert_eq!(inb(&chipset, 0x3fd) & 0x60, 0x60);
}

#[test]
fn serial_input_interrupts_and_is_read_in_order() {
    let (world, chipset) = machine();
    route(&chipset, SERIAL_IRQ, 0x34, 1);
    chipset.pio_write(0x3f9, &[1]);
    let input: Vec<u8> = (0..200).collect();
    assert_eq!(chipset.console_input(&input), 200);
    let expected = InterruptMessage {
        destination: 1,
        logical: false,
        mode: DeliveryMode::Fixed,
        vector: 0x34,
    };
    assert_eq!(lock(&world.messages).first(), Some(&expected));
    let read: Vec<u8> = (0..200).map(|_| inb(&chipset, 0x3f8)).collect();
    assert_eq!(read, input);
    assert_eq!(inb(&chipset, 0x3fd) & 1, 0);
}

#[test]
fn serial_input_beyond_the_bound_is_left_to_the_caller() {
    let (_, chipset) = machine();
    let taken = chipset.console_input(&[0; 10_000]);
    assert!((INPUT_LIMIT..INPUT_LIMIT + 65).contains(&(taken + chipset.console_input(&[0; 100]))));
    assert_eq!(chipset.console_input(&[0]), 0);
}

#[test]
fn vcpu_that_comes_interrupts_a_guest_that_has_enabled_the_event() {
    let (world, chipset) = machine_with(Some(1));
    route(&chipset, SCI_IRQ, 0x39, 1);
    chipset.add_vcpu(1, 0).unwrap();
    assert!(lock(&world.messages).is_empty());
    chipset.pio_write(GPE_PORT + 1, &[1]);
    assert_eq!(lock(&world.messages).len(), 1);
    assert_eq!(inb(&chipset, GPE_PORT), 1);
    chipset.pio_write(GPE_PORT, &[1]);
    let read = |offset| {
        let mut data = [0; 4];
        chipset.pio_read(HOTPLUG_PORT + offset, &mut data);
        u32::from_le_bytes(data)
    };
    // In bytes or words there is nothing to see, and nothing is taken.
    let mut word = [0; 2];
    chipset.pio_read(HOTPLUG_PORT + 4, &mut word);
    assert_eq!((inb(&chipset, HOTPLUG_PORT + 4), word), (0xff, [0xff; 2]));
    assert_eq!([read(4), read(4), read(8)], [0x1_0001, u32::MAX, 0xf]);
    chipset.pio_write(HOTPLUG_PORT + 12, &0x1_0000_u32.to_le_bytes());
    assert_eq!(chipset.plugs().unwrap()[1].state, PlugState::Present);
    chipset.remove_vcpu(1).unwrap();
    assert_eq!(lock(&world.messages).len(), 2);
}

#[test]
fn machine_whose_vcpus_stay_has_no_registers_for_them() {
    let (_, chipset) = machine();
    let mut data = [0; 4];
    chipset.pio_read(HOTPLUG_PORT, &mut data);
    assert_eq!(data, [0xff; 4]);
    assert_eq!((chipset.plugs(), chipset.add_vcpu(1, 0)), (None, Err(PlugError::NoHotplug)));
}

#[test]
fn another_generation_interrupts_a_guest_that_has_enabled_the_event() {
    let (world, chipset) = machine();
    route(&chipset, SCI_IRQ, 0x39, 1);
    assert!(!chipset.notify_generation());
    assert!(lock(&world.messages).is_empty());
    // Linux clears what was before it came up.
    chipset.pio_write(GPE_PORT, &[0xff]);
    chipset.pio_write(GPE_PORT + 1, &[2]);
    assert!(lock(&world.messages).is_empty());
    assert!(chipset.notify_generation());
    assert_eq!((lock(&world.messages).len(), inb(&chipset, GPE_PORT)), (1, 2));
    chipset.pio_write(GPE_PORT, &[2]);
    assert_eq!((inb(&chipset, GPE_PORT), inb(&chipset, GPE_PORT + 1)), (0, 2));
}

#[test]
fn power_button_interrupts_a_guest_that_has_enabled_it() {
    let (world, chipset) = machine();
    route(&chipset, SCI_IRQ, 0x39, 1);
    assert!(!chipset.press_power_button());
    assert!(lock(&world.messages).is_empty());
    // Linux clears the status and enables the event, in words.
    chipset.pio_write(pm::PM1_EVENT_PORT, &[0, 1]);
    chipset.pio_write(pm::PM1_EVENT_PORT + 2, &[0x20, 1]);
    assert!(lock(&world.messages).is_empty());
    for presses in 1..=2 {
        assert!(chipset.press_power_button());
        assert_eq!(lock(&world.messages).len(), presses);
        assert_eq!(inb(&chipset, pm::PM1_EVENT_PORT + 1), 1);
        chipset.pio_write(pm::PM1_EVENT_PORT, &[0, 1]);
        assert_eq!(inb(&chipset, pm::PM1_EVENT_PORT + 1), 0);
    }
    assert!(lock(&world.causes).is_empty());
}

#[test]
fn interrupt_to_absent_vcpu_is_dropped() {
    let (world, chipset) = machine();
    route(&chipset, 9, 0x41, 2);
    chipset.set_line(9, true);
    assert!(lock(&world.messages).is_empty());
}

#[test]
fn level_line_still_asserted_interrupts_again_after_eoi() {
    let (world, chipset) = machine();
    route(&chipset, 9, 0x41 | 1 << 15, 0);
    chipset.set_line(9, true);
    chipset.end_of_interrupt(0x41);
    assert_eq!(lock(&world.messages).len(), 2);
    chipset.set_line(9, false);
    chipset.end_of_interrupt(0x41);
    assert_eq!(lock(&world.messages).len(), 2);
}

#[test]
fn shutdown_every_way_is_told_apart() {
    let (world, chipset) = machine();
    chipset.pio_write(0x604, &(1_u16 << 13 | 5 << 10).to_le_bytes());
    chipset.pio_write(0xcf9, &[0x06]);
    chipset.pio_write(0x64, &[0xfe]);
    chipset.pio_write(0x505, &[1]);
    use ShutdownCause::{GuestPanic, PowerOff, Reset};
    assert_eq!(*lock(&world.causes), [PowerOff, Reset, Reset, GuestPanic]);
}

#[test]
fn pci_probe_neither_resets_nor_finds_a_bus() {
    let (world, chipset) = machine();
    chipset.pio_write(0xcf8, &0x8000_0604_u32.to_le_bytes());
    chipset.pio_write(0xcf9, &[0x02]);
    let mut value = [0; 4];
    chipset.pio_read(0xcf8, &mut value);
    assert_eq!(value, [0xff; 4]);
    assert!(lock(&world.causes).is_empty());
}

#[test]
fn pm_registers_read_as_acpi_mode_and_elapsed_time() {
    let (_, chipset) = machine();
    let mut timer = [0; 4];
    chipset.pio_read(0x608, &mut timer);
    assert_eq!(u32::from_le_bytes(timer), 2 * 3_579_545);
    let mut control = [0; 2];
    chipset.pio_read(0x604, &mut control);
    assert_eq!(control, [1, 0]);
}

#[test]
fn interrupt_masks_read_back_and_timer_ports_read_zero() {
    let (_, chipset) = machine();
    chipset.pio_write(0x21, &[0xfb]);
    chipset.pio_write(0xa1, &[0x12]);
    let ports = [0x21, 0xa1, 0x40, 0x42, 0x43, 0x20, 0xa0, 0x64, 0x80];
    assert_eq!(ports.map(|port| inb(&chipset, port)), [0xfb, 0x12, 0, 0, 0, 0, 0, 0, 0xff]);
}

#[test]
fn unclaimed_registers_read_all_ones() {
    let (_, chipset) = machine();
    let mut data = [0; 8];
    chipset.mmio_read(0xfed0_0000, &mut data);
    assert_eq!(data, [0xff; 8]);
    chipset.mmio_read(u64::from(IOAPIC_BASE), &mut data);
    assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
}

proptest! {
    #[test]
    fn any_guest_traffic_is_harmless(
        steps in prop::collection::vec((any::<u16>(), any::<[u8; 8]>(), 0_usize..9), 0..100),
        low in any::<bool>(),
    ) {
        let (_, chipset) = machine();
        for (port, mut data, len) in steps {
            let port = if low { port & 0xfff } else { port };
            chipset.pio_write(port, &data[..len]);
            chipset.pio_read(port, &mut data[..len]);
            chipset.mmio_write(u64::from(IOAPIC_BASE) + u64::from(port), &data[..len]);
            chipset.mmio_read(u64::from(IOAPIC_BASE) + u64::from(port), &mut data[..len]);
        }
    }
}
