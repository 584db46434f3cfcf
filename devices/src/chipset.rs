//! All platform devices behind one bus.
//!
//! | ports or addresses | device |
//! |---|---|
//! | 0x20, 0x21, 0xa0, 0xa1 | interrupt controllers that only remember their masks |
//! | 0x40-0x43, 0x61 | what is left of the 8254 timer |
//! | 0x60, 0x64 | keyboard controller: only its reset line |
//! | 0x70, 0x71 | CMOS clock |
//! | 0xe9 | debug console |
//! | 0x3f8-0x3ff | serial line |
//! | 0x505 | panic notifier |
//! | 0x600-0x60b | ACPI PM1 and PM timer |
//! | 0x610, 0x611 | ACPI general-purpose events |
//! | 0x620-0x633 | CPU hot-plug, if vCPUs can come later |
//! | 0xcf9 | reset control |
//! | 0xfec00000 | IOAPIC |
//!
//! PCI has no ports, only ECAM (`crate::pci`): 0xcf8 and 0xcfc read all ones. A port access of
//! several bytes is that many byte accesses at rising ports, except where a device says otherwise.
//!
//! Lock order: serial, then IOAPIC. Interrupts are sent with the IOAPIC unlocked.

mod saved;

pub use saved::ChipsetState;

use crate::acpi::SCI_IRQ;
use crate::cmos::Cmos;
use crate::gpe::{Event, EventBlock, GPE_BYTES, GPE_PORT};
use crate::hotplug::{HOTPLUG_BYTES, HOTPLUG_PORT, Hotplug, HotplugConfig, Plug, PlugError};
use crate::ioapic::{IOAPIC_BASE, IoApic};
use crate::pit::Pit;
use crate::pm::{self, Pm1, Pm1Write};
use crate::serial::{Console, SERIAL_IRQ, SERIAL_PORT, SerialInterrupt, SerialLine};
use crate::traits::{
    Bus, GuestClock, InterruptMessage, InterruptSink, ShutdownCause, ShutdownSink,
};
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const DEBUG_PORT: u16 = 0xe9;
const KEYBOARD_DATA: u16 = 0x60;
const KEYBOARD_COMMAND: u16 = 0x64;
/// Keyboard controller command: pulse the reset line.
const KEYBOARD_RESET: u8 = 0xfe;
const SERIAL_END: u16 = SERIAL_PORT + 7;
const PM1_END: u16 = pm::PM1_CONTROL_PORT + 1;
const PM_TIMER_END: u16 = pm::PM_TIMER_PORT + 3;
const GPE_END: u16 = GPE_PORT + GPE_BYTES as u16 - 1;
const HOTPLUG_END: u16 = HOTPLUG_PORT + HOTPLUG_BYTES as u16 - 1;
const IOAPIC_START: u64 = IOAPIC_BASE as u64;
const IOAPIC_END: u64 = IOAPIC_START + 0xfff;

/// What a chipset is connected to.
pub struct ChipsetConfig {
    /// Number of vCPUs: an IOAPIC message to a physical id at or above it is dropped.
    pub vcpus: u32,
    /// Which of them the guest has at the start, if others can come later.
    pub hotplug: Option<HotplugConfig>,
    /// Takes the output of the guest, byte by byte. It should not block for long: the writing vCPU
    /// waits for it.
    pub console: Box<dyn Write + Send>,
    /// Takes interrupt messages.
    pub interrupts: Arc<dyn InterruptSink>,
    /// Told about power-off, reset and panic.
    pub shutdown: Arc<dyn ShutdownSink>,
    /// The clock behind the PM timer.
    pub clock: Arc<dyn GuestClock>,
}

impl fmt::Debug for ChipsetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChipsetConfig").field("vcpus", &self.vcpus).finish_non_exhaustive()
    }
}

/// The IOAPIC with its way out.
struct IoApicPort {
    ioapic: Mutex<IoApic>,
    interrupts: Arc<dyn InterruptSink>,
    vcpus: u32,
}

impl IoApicPort {
    /// Runs one operation on the IOAPIC and sends what came of it.
    fn with<M: IntoIterator<Item = InterruptMessage>>(
        &self,
        operation: impl FnOnce(&mut IoApic) -> M,
    ) {
        let messages = operation(&mut lock(&self.ioapic));
        for message in messages {
            let id = message.destination;
            if message.logical || id == u32::MAX || id < self.vcpus {
                self.interrupts.deliver(message);
            }
        }
    }
}

/// Small devices that share a lock: none of them is on a hot path.
#[derive(Debug, Default)]
struct Legacy {
    cmos: Cmos,
    pm1: Pm1,
    events: EventBlock,
    pit: Pit,
    interrupt_masks: [u8; 2],
    /// Where vCPUs can come later.
    hotplug: Option<Hotplug>,
}

/// All platform devices of a machine. Any thread may use it.
pub struct Chipset {
    legacy: Mutex<Legacy>,
    serial: Mutex<SerialLine>,
    ioapic: Arc<IoApicPort>,
    console: Console,
    shutdown: Arc<dyn ShutdownSink>,
    clock: Arc<dyn GuestClock>,
}

impl fmt::Debug for Chipset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chipset").field("legacy", &self.legacy).finish_non_exhaustive()
    }
}

/// A panic of another thread leaves a device usable: every operation keeps its state whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chipset {
    /// Devices in their state at power-on.
    #[must_use]
    pub fn new(config: ChipsetConfig) -> Self {
        let ChipsetConfig { vcpus, hotplug, console, interrupts, shutdown, clock } = config;
        let console = Console::new(console);
        let ioapic = Arc::new(IoApicPort { ioapic: Mutex::default(), interrupts, vcpus });
        let line = Arc::clone(&ioapic);
        let interrupt = SerialInterrupt::new(move || line.with(|io| io.pulse(SERIAL_IRQ)));
        Self {
            legacy: Mutex::new(Legacy {
                hotplug: hotplug.as_ref().map(Hotplug::new),
                ..Legacy::default()
            }),
            serial: Mutex::new(SerialLine::new(console.clone(), interrupt)),
            ioapic,
            console,
            shutdown,
            clock,
        }
    }

    /// Feeds bytes to the serial line and gives the number taken; at most 4096 bytes wait for the
    /// guest. The caller keeps the rest and comes back.
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        lock(&self.serial).input(bytes)
    }

    /// A vCPU has ended the service of this vector: level-triggered pins that are still asserted
    /// interrupt again. Vectors of no pin are fine.
    pub fn end_of_interrupt(&self, vector: u8) {
        self.ioapic.with(|ioapic| ioapic.end_of_interrupt(vector));
    }

    /// Presses the ACPI power button, which asks the guest to shut down. False: the guest has not enabled
    /// the event; it is told when it does, unless it clears the event first, as Linux does.
    pub fn press_power_button(&self) -> bool {
        let heard = lock(&self.legacy).pm1.press_power_button();
        if heard {
            self.raise_sci();
        }
        heard
    }

    /// Tells the guest that its VM has another generation id, which is in its memory by now: it reads it. That may be before
    /// any vCPU runs, but not before the states of chipset and vCPUs have been restored, for an interrupt is part of those. False: the
    /// guest has not enabled the event; it is told when it does, unless it clears the event first, as Linux does at boot
    /// before it reads the id.
    pub fn notify_generation(&self) -> bool {
        let heard = lock(&self.legacy).events.raise(Event::Generation);
        if heard {
            self.raise_sci();
        }
        heard
    }

    /// All vCPUs, by their numbers, if some can come later.
    pub fn plugs(&self) -> Option<Vec<Plug>> {
        lock(&self.legacy).hotplug.as_ref().map(|hotplug| hotplug.plugs().to_vec())
    }

    /// Tells the guest of a vCPU that it does not have, and at which node that is, or takes back a request for it that the guest has not seen. One that it
    /// has is fine.
    ///
    /// # Errors
    /// There is no such vCPU, or none can come, or the guest is giving it back.
    pub fn add_vcpu(&self, vcpu: u32, node: u8) -> Result<(), PlugError> {
        self.with_hotplug(|hotplug| hotplug.add(vcpu, node))
    }

    /// Asks the guest for a vCPU, again if it was asked before. One that it does not have is fine.
    ///
    /// # Errors
    /// There is no such vCPU, or it is the first one, or none can come and go.
    pub fn remove_vcpu(&self, vcpu: u32) -> Result<(), PlugError> {
        self.with_hotplug(|hotplug| hotplug.remove(vcpu))
    }

    fn with_hotplug(
        &self,
        ask: impl FnOnce(&mut Hotplug) -> Result<bool, PlugError>,
    ) -> Result<(), PlugError> {
        let mut legacy = lock(&self.legacy);
        let asked = ask(legacy.hotplug.as_mut().ok_or(PlugError::NoHotplug)?)?;
        let due = asked && legacy.events.raise(Event::Vcpus);
        drop(legacy);
        if due {
            self.raise_sci();
        }
        Ok(())
    }

    fn raise_sci(&self) {
        self.ioapic.with(|ioapic| ioapic.pulse(SCI_IRQ));
    }

    /// Sets a level-triggered line of the IOAPIC; pins beyond the last are ignored.
    pub fn set_line(&self, pin: u8, high: bool) {
        self.ioapic.with(|ioapic| ioapic.set_line(pin, high));
    }

    fn read_port(&self, port: u16) -> u8 {
        match port {
            0x20 | 0xa0 | 0x40..=0x43 | KEYBOARD_DATA | KEYBOARD_COMMAND => 0,
            0x21 | 0xa1 => lock(&self.legacy).interrupt_masks[usize::from(port >> 7)],
            0x61 => lock(&self.legacy).pit.read_control(&*self.clock),
            0x70 | 0x71 => lock(&self.legacy).cmos.read(port & 1),
            // A debug console says that it is there.
            DEBUG_PORT => 0xe9,
            SERIAL_PORT..=SERIAL_END => lock(&self.serial).read(register(port, SERIAL_PORT)),
            pm::PVPANIC_PORT => pm::PVPANIC_PANICKED,
            pm::PM1_EVENT_PORT..=PM1_END => lock(&self.legacy).pm1.read(port - pm::PM1_EVENT_PORT),
            GPE_PORT..=GPE_END => lock(&self.legacy).events.read(port - GPE_PORT),
            _ => 0xff,
        }
    }

    fn write_port(&self, port: u16, value: u8) {
        match port {
            0x21 | 0xa1 => lock(&self.legacy).interrupt_masks[usize::from(port >> 7)] = value,
            0x40..=0x43 => lock(&self.legacy).pit.write(port & 3, value, &*self.clock),
            0x61 => lock(&self.legacy).pit.write_control(value, &*self.clock),
            KEYBOARD_COMMAND if value == KEYBOARD_RESET => self.end(ShutdownCause::Reset),
            0x70 | 0x71 => lock(&self.legacy).cmos.write(port & 1, value),
            DEBUG_PORT => drop(self.console.clone().write_all(&[value])),
            SERIAL_PORT..=SERIAL_END => {
                lock(&self.serial).write(register(port, SERIAL_PORT), value);
            }
            pm::PVPANIC_PORT if value & pm::PVPANIC_PANICKED != 0 => {
                self.end(ShutdownCause::GuestPanic);
            }
            pm::PM1_EVENT_PORT..=PM1_END => {
                let asked = lock(&self.legacy).pm1.write(port - pm::PM1_EVENT_PORT, value);
                match asked {
                    Pm1Write::Stored => {}
                    Pm1Write::Event => self.raise_sci(),
                    Pm1Write::PowerOff => self.end(ShutdownCause::PowerOff),
                }
            }
            GPE_PORT..=GPE_END => {
                let due = lock(&self.legacy).events.write(port - GPE_PORT, value);
                if due {
                    self.raise_sci();
                }
            }
            _ => {}
        }
    }

    fn end(&self, cause: ShutdownCause) {
        self.shutdown.shutdown(cause);
    }
}

/// Register number of a port in a block of eight.
fn register(port: u16, block: u16) -> u8 {
    u8::try_from(port - block).unwrap_or(7)
}

impl Bus for Chipset {
    fn pio_read(&self, port: u16, data: &mut [u8]) {
        match (port, &mut *data) {
            // The timer is read once for all its bytes.
            (pm::PM_TIMER_PORT..=PM_TIMER_END, _) => {
                let timer = pm::pm_timer(&*self.clock);
                let from = usize::from(port - pm::PM_TIMER_PORT);
                data.fill(0xff);
                for (byte, value) in data.iter_mut().zip(&timer[from..]) {
                    *byte = *value;
                }
            }
            (pm::RESET_PORT, [byte]) => *byte = 0,
            (HOTPLUG_PORT..=HOTPLUG_END, _) => {
                data.fill(0xff);
                let hotplug = &mut lock(&self.legacy).hotplug;
                if let (Some(hotplug), Ok(data)) = (hotplug, data.try_into()) {
                    let data: &mut [u8; 4] = data;
                    *data = hotplug.read(port - HOTPLUG_PORT).to_le_bytes();
                }
            }
            _ => {
                for (byte, offset) in data.iter_mut().zip(0..) {
                    *byte = self.read_port(port.wrapping_add(offset));
                }
            }
        }
    }

    fn pio_write(&self, port: u16, data: &[u8]) {
        match (port, data) {
            // Only as a byte: a wider access here is the address register of PCI.
            (pm::RESET_PORT, [value]) => {
                if value & (pm::RESET_VALUE & 4) != 0 {
                    self.end(ShutdownCause::Reset);
                }
            }
            (HOTPLUG_PORT..=HOTPLUG_END, _) => {
                let hotplug = &mut lock(&self.legacy).hotplug;
                if let (Some(hotplug), Ok(data)) = (hotplug, data.try_into()) {
                    hotplug.write(port - HOTPLUG_PORT, u32::from_le_bytes(data));
                }
            }
            _ => {
                for (value, offset) in data.iter().zip(0..) {
                    self.write_port(port.wrapping_add(offset), *value);
                }
            }
        }
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if (IOAPIC_START..=IOAPIC_END).contains(&address) {
            let value = lock(&self.ioapic.ioapic).read(address - IOAPIC_START);
            for (byte, value) in data.iter_mut().zip(value.to_le_bytes()) {
                *byte = value;
            }
        }
    }

    fn mmio_write(&self, address: u64, data: &[u8]) {
        if (IOAPIC_START..=IOAPIC_END).contains(&address) {
            let mut value = [0; 4];
            for (byte, written) in value.iter_mut().zip(data) {
                *byte = *written;
            }
            let value = u32::from_le_bytes(value);
            self.ioapic.with(|ioapic| ioapic.write(address - IOAPIC_START, value));
        }
    }
}

#[cfg(test)]
mod tests;
