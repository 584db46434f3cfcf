//! Which vCPUs an interrupt message reaches. Pure.
//!
//! The x2APIC id of a vCPU is its `VcpuId`, and its logical id follows from it (Intel SDM vol. 3,
//! 12.12.10.2): cluster `id >> 4` in the upper half, bit `id & 15` in the lower.

use devices::{DeliveryMode, InterruptMessage};
use wire::VcpuId;
use wire::control::InterruptEvent;

/// An interrupt that arrives at one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum VcpuEvent {
    /// A maskable interrupt with its vector.
    Fixed(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// INIT: reset and wait for a start-up message.
    Init,
    /// Start-up at page `vector` of real-mode memory.
    Startup(u8),
}

impl VcpuEvent {
    /// Whether it has a meaning only behind what was sent before it.
    pub(crate) fn starts(self) -> bool {
        matches!(self, Self::Init | Self::Startup(_))
    }

    /// What a message becomes at each vCPU of its destination.
    #[must_use]
    pub fn of(mode: DeliveryMode, vector: u8) -> Self {
        match mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => Self::Fixed(vector),
            DeliveryMode::Nmi => Self::Nmi,
            DeliveryMode::Init => Self::Init,
            DeliveryMode::Startup => Self::Startup(vector),
        }
    }
}

impl From<VcpuEvent> for InterruptEvent {
    fn from(event: VcpuEvent) -> Self {
        match event {
            VcpuEvent::Fixed(vector) => Self::Fixed(vector),
            VcpuEvent::Nmi => Self::Nmi,
            VcpuEvent::Init => Self::Init,
            VcpuEvent::Startup(page) => Self::Startup(page),
        }
    }
}

impl From<InterruptEvent> for VcpuEvent {
    fn from(event: InterruptEvent) -> Self {
        match event {
            InterruptEvent::Fixed(vector) => Self::Fixed(vector),
            InterruptEvent::Nmi => Self::Nmi,
            InterruptEvent::Init => Self::Init,
            InterruptEvent::Startup(page) => Self::Startup(page),
        }
    }
}

/// The logical x2APIC id of a vCPU.
#[must_use]
pub fn logical_id(id: VcpuId) -> u32 {
    (id.0 >> 4) << 16 | 1 << (id.0 & 15)
}

/// Destination shorthand of the interrupt command register (Intel SDM vol. 3, 12.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shorthand {
    /// The destination field says who.
    None,
    /// Only the sender.
    This,
    /// Everyone.
    All,
    /// Everyone but the sender.
    Others,
}

/// Calls `each` with every vCPU below `vcpus` that `message` reaches; a lowest-priority message
/// reaches only the first of them.
pub fn resolve(message: &InterruptMessage, vcpus: u32, mut each: impl FnMut(VcpuId)) {
    let one = message.mode == DeliveryMode::LowestPriority;
    let everyone = message.destination == u32::MAX;
    if !everyone && !message.logical {
        if message.destination < vcpus {
            each(VcpuId(message.destination));
        }
        return;
    }
    let (first, end) = if everyone {
        (0, vcpus)
    } else {
        let first = (message.destination >> 16) << 4;
        (first.min(vcpus), first.saturating_add(16).min(vcpus))
    };
    for id in (first..end).map(VcpuId) {
        if everyone || message.destination & logical_id(id) & 0xffff != 0 {
            each(id);
            if one {
                return;
            }
        }
    }
}

/// The same for a message that `sender` sends with a shorthand.
pub fn resolve_from(
    sender: VcpuId,
    shorthand: Shorthand,
    message: &InterruptMessage,
    vcpus: u32,
    mut each: impl FnMut(VcpuId),
) {
    match shorthand {
        Shorthand::None => resolve(message, vcpus, each),
        Shorthand::This => each(sender),
        Shorthand::All => (0..vcpus).for_each(|id| each(VcpuId(id))),
        Shorthand::Others => {
            (0..vcpus).filter(|id| *id != sender.0).for_each(|id| each(VcpuId(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reached(destination: u32, logical: bool, mode: DeliveryMode, vcpus: u32) -> Vec<u32> {
        let mut all = Vec::new();
        let message = InterruptMessage { destination, logical, mode, vector: 0x40 };
        resolve(&message, vcpus, |id| all.push(id.0));
        all
    }

    #[test]
    fn physical_destination_reaches_one_vcpu() {
        assert_eq!(reached(3, false, DeliveryMode::Fixed, 8), [3]);
        assert_eq!(reached(8, false, DeliveryMode::Fixed, 8), [0; 0]);
    }

    #[test]
    fn logical_destination_reaches_the_cluster_members_named() {
        assert_eq!(reached(0x6, true, DeliveryMode::Fixed, 40), [1, 2]);
        assert_eq!(reached(0x1_0003, true, DeliveryMode::Fixed, 40), [16, 17]);
        assert_eq!(reached(0x2_ffff, true, DeliveryMode::Fixed, 34), [32, 33]);
        assert_eq!(reached(0xfff0_0001, true, DeliveryMode::Fixed, 34), [0; 0]);
    }

    #[test]
    fn broadcast_reaches_everyone() {
        assert_eq!(reached(u32::MAX, false, DeliveryMode::Fixed, 3), [0, 1, 2]);
        assert_eq!(reached(u32::MAX, true, DeliveryMode::Nmi, 3), [0, 1, 2]);
    }

    #[test]
    fn lowest_priority_reaches_one_of_the_set() {
        assert_eq!(reached(0x6, true, DeliveryMode::LowestPriority, 8), [1]);
        assert_eq!(reached(u32::MAX, false, DeliveryMode::LowestPriority, 8), [0]);
    }

    #[test]
    fn shorthands_ignore_the_destination_field() {
        let message = InterruptMessage {
            destination: 99,
            logical: false,
            mode: DeliveryMode::Fixed,
            vector: 0x40,
        };
        let collect = |shorthand| {
            let mut all = Vec::new();
            resolve_from(VcpuId(1), shorthand, &message, 3, |id| all.push(id.0));
            all
        };
        assert_eq!(collect(Shorthand::This), [1]);
        assert_eq!(collect(Shorthand::All), [0, 1, 2]);
        assert_eq!(collect(Shorthand::Others), [0, 2]);
        assert_eq!(collect(Shorthand::None), [0; 0]);
    }

    proptest! {
        #[test]
        fn no_message_reaches_a_vcpu_that_does_not_exist(
            destination in any::<u32>(), logical in any::<bool>(), vcpus in 0_u32..300
        ) {
            for id in reached(destination, logical, DeliveryMode::Fixed, vcpus) {
                prop_assert!(id < vcpus);
            }
        }

        #[test]
        fn own_logical_id_reaches_exactly_oneself(id in 0_u32..4096) {
            let all = reached(logical_id(VcpuId(id)), true, DeliveryMode::Fixed, 5000);
            prop_assert_eq!(all, [id]);
        }
    }
}
