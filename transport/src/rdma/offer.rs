//! What two slices must know of each other before their queue pairs can talk.

use super::exposed::RemoteMemory;
use crate::traits::Class;
use serde::{Deserialize, Serialize};

/// Packet sequence numbers and queue pair numbers have 24 bits (InfiniBand specification, 9.2).
const BITS_24: u32 = 1 << 24;

/// Where a queue pair is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// Its number.
    pub(super) number: u32,
    /// The packet sequence number it starts with.
    pub(super) sequence: u32,
}

/// One side of the queue pairs between two slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The port's global identifier.
    pub(super) gid: [u8; 16],
    /// The port's local identifier; zero on Ethernet.
    pub(super) lid: u16,
    /// The largest packet, as the InfiniBand code 1 (256 bytes) to 5 (4096 bytes).
    pub(super) mtu: u8,
    /// True on Ethernet.
    pub(super) ethernet: bool,
    /// One queue pair per class.
    pub(super) pairs: [Pair; Class::COUNT],
    /// Slots per class.
    pub(super) slots: [u16; Class::COUNT],
    /// Bytes of a slot, per class.
    pub(super) slot_bytes: [u32; Class::COUNT],
    /// Memory that pages may be written into.
    pub(super) memory: Option<RemoteMemory>,
}

impl Offer {
    /// Checks what could not work with `own`.
    pub(super) fn check(&self, own: &Self) -> Result<(), String> {
        if (self.slots, self.slot_bytes) != (own.slots, own.slot_bytes) {
            return Err(format!("its slots are {:?} of {:?} bytes", self.slots, self.slot_bytes));
        }
        if self.ethernet != own.ethernet {
            return Err(String::from("one port is Ethernet and the other InfiniBand"));
        }
        if !(1..=5).contains(&self.mtu) {
            return Err(format!("its packet size has the unknown code {}", self.mtu));
        }
        if let (Some(theirs), Some(own)) = (self.memory, own.memory)
            && theirs.bytes != own.bytes
        {
            return Err(format!("it exposes {} bytes and not {}", theirs.bytes, own.bytes));
        }
        if self.memory.is_some_and(|exposed| exposed.address.checked_add(exposed.bytes).is_none()) {
            return Err(String::from("the memory that it exposes has no end"));
        }
        if self.pairs.iter().any(|pair| pair.number >= BITS_24 || pair.sequence >= BITS_24) {
            return Err(String::from("a queue pair number has more than 24 bits"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::decode;
    use proptest::prelude::*;

    fn offer() -> Offer {
        Offer {
            gid: [7; 16],
            lid: 3,
            mtu: 5,
            ethernet: true,
            pairs: [Pair { number: 17, sequence: 0xff_ffff }; Class::COUNT],
            slots: [64, 128, 128, 32],
            slot_bytes: [1024, 8192, 8192, 16384],
            memory: Some(RemoteMemory { address: 0x7f00_0000_0000, key: 9, bytes: 1 << 29 }),
        }
    }

    #[test]
    fn offer_that_cannot_work_is_refused_by_name() {
        type Change = fn(&mut Offer);
        let own = offer();
        let changes: [(Change, &str); 6] = [
            (|offer| offer.slots[1] = 1, "slots"),
            (|offer| offer.ethernet = false, "Ethernet"),
            (|offer| offer.mtu = 6, "code 6"),
            (|offer| offer.memory.as_mut().unwrap().bytes += 4096, "exposes"),
            (|offer| offer.memory.as_mut().unwrap().address = u64::MAX, "no end"),
            (|offer| offer.pairs[2].number = 1 << 24, "24 bits"),
        ];

        assert_eq!(own.check(&own), Ok(()));
        let none = Offer { memory: None, ..offer() };
        assert_eq!((own.check(&none), none.check(&own)), (Ok(()), Ok(())));
        for (change, word) in changes {
            let mut theirs = offer();
            change(&mut theirs);
            let text = theirs.check(&own).unwrap_err();
            assert!(text.contains(word), "{text}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Ok(theirs)) = decode::<Offer>(&bytes) {
                let _ = theirs.check(&offer());
            }
        }
    }
}
