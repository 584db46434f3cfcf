//! What arrives at a vCPU, and its two bytes in a head: event and vector.

/// What arrives at a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterruptEvent {
    /// A vector.
    Fixed(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// INIT.
    Init,
    /// Start-up, with the page of the entry point.
    Startup(u8),
}

pub(super) fn event_code(event: InterruptEvent) -> (u8, u8) {
    match event {
        InterruptEvent::Fixed(vector) => (0, vector),
        InterruptEvent::Nmi => (4, 0),
        InterruptEvent::Init => (5, 0),
        InterruptEvent::Startup(page) => (6, page),
    }
}

pub(super) fn decode_event(code: u8, vector: u8) -> Option<InterruptEvent> {
    match code {
        0 => Some(InterruptEvent::Fixed(vector)),
        4 => Some(InterruptEvent::Nmi),
        5 => Some(InterruptEvent::Init),
        6 => Some(InterruptEvent::Startup(vector)),
        _ => None,
    }
}
