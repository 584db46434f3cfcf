//! The seams between devices and the rest of the machine.

use std::sync::Arc;

/// Delivery mode of an interrupt message (Intel SDM vol. 3, 12.6.1; AMD APM vol. 2, 16.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryMode {
    /// The vector, to every vCPU of the destination.
    Fixed,
    /// The vector, to one vCPU of the destination.
    LowestPriority,
    /// A non-maskable interrupt.
    Nmi,
    /// INIT: the vCPU waits for a start-up message.
    Init,
    /// Start-up: the vector is the page of the entry point.
    Startup,
}

/// An interrupt on its way to one or more local APICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterruptMessage {
    /// x2APIC destination (physical id, or logical `cluster << 16 | mask`); `u32::MAX` is all.
    pub destination: u32,
    /// True when the destination is logical.
    pub logical: bool,
    /// What arrives.
    pub mode: DeliveryMode,
    /// The vector, or the start-up page.
    pub vector: u8,
}

/// Takes interrupts from devices and IOAPIC and brings them to the vCPUs, wherever these run.
pub trait InterruptSink: Send + Sync {
    /// Delivers the message. Never blocks on a vCPU.
    fn deliver(&self, message: InterruptMessage);
}

/// Why the guest wants the machine to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShutdownCause {
    /// ACPI S5 or another power-off request.
    PowerOff,
    /// ACPI reset register, keyboard controller reset or triple fault by design.
    Reset,
    /// The guest's panic notifier (pvpanic port).
    GuestPanic,
}

/// Told when the guest ends the machine.
pub trait ShutdownSink: Send + Sync {
    /// Called from a vCPU or device thread; returns at once.
    fn shutdown(&self, cause: ShutdownCause);
}

/// Reads the guest's time stamp counter as every vCPU sees it, in ticks of the frequency that the
/// guest was told.
pub trait GuestClock: Send + Sync {
    /// Ticks now.
    fn ticks(&self) -> u64;
    /// Ticks per second, as told to the guest.
    fn frequency_hz(&self) -> u64;
}

/// The ports and memory-mapped registers of the machine. Accesses are 1, 2, 4 or 8 bytes, little
/// endian; unclaimed reads give all ones.
pub trait Bus: Send + Sync {
    /// Reads `data.len()` bytes of an I/O port.
    fn pio_read(&self, port: u16, data: &mut [u8]);
    /// Writes an I/O port.
    fn pio_write(&self, port: u16, data: &[u8]);
    /// Reads memory-mapped registers.
    fn mmio_read(&self, address: u64, data: &mut [u8]);
    /// Writes memory-mapped registers.
    fn mmio_write(&self, address: u64, data: &[u8]);
}

/// A bus that any vCPU thread may use.
pub type SharedBus = Arc<dyn Bus>;
