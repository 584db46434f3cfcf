//! What two slices tell each other over their authenticated stream before their queue pairs can
//! talk: a little-endian `u32` length and that many bytes of postcard.

use super::exposed::RemoteMemory;
use crate::handshake::{Channel, read_all, write_all};
use crate::seam::Class;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::time::Instant;

/// The largest message, in bytes.
const BYTES_MAX: usize = 4096;
/// The longest reason, in bytes.
const TEXT_MAX: usize = 1024;
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

/// A step of the set-up: what this side has, or why it has not.
pub(crate) type Step<T> = Result<T, String>;

/// Says how a step went.
pub(crate) fn tell<T: Serialize>(
    channel: &mut impl Channel,
    step: &Step<T>,
    deadline: Instant,
) -> io::Result<()> {
    let cut = step.as_ref().map_err(|text| crate::control::cut(text));
    let body = postcard::to_stdvec(&cut).map_err(|error| io::Error::other(error.to_string()))?;
    let length = u32::try_from(body.len()).map_err(|_| ErrorKind::InvalidData)?;
    write_all(channel, &[&length.to_le_bytes()[..], &body].concat(), deadline)
}

/// Hears how the step went at the other end.
pub(crate) fn hear<T: Serialize + for<'a> Deserialize<'a>>(
    channel: &mut impl Channel,
    deadline: Instant,
) -> io::Result<Step<T>> {
    let mut length = [0; 4];
    read_all(channel, &mut length, deadline)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > BYTES_MAX {
        let text = format!("the peer announced {length} bytes of RDMA set-up");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut body = vec![0; length];
    read_all(channel, &mut body, deadline)?;
    decode(&body)
}

fn decode<T: for<'a> Deserialize<'a>>(body: &[u8]) -> io::Result<Step<T>> {
    let step: Step<T> = postcard::from_bytes(body)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
    if step.as_ref().err().is_some_and(|text| text.len() > TEXT_MAX) {
        return Err(io::Error::new(ErrorKind::InvalidData, "the peer's reason is too long"));
    }
    Ok(step)
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
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

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
    fn steps_round_trip_in_order() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        tell(&mut near, &Ok(offer()), deadline).unwrap();
        tell::<()>(&mut near, &Err("x".repeat(5000)), deadline).unwrap();

        assert_eq!(hear::<Offer>(&mut far, deadline).unwrap(), Ok(offer()));
        assert_eq!(hear::<()>(&mut far, deadline).unwrap().unwrap_err().len(), TEXT_MAX);
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
