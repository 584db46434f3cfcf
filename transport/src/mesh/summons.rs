//! What a member of a running VM is told about a newcomer that it has to call.

use super::error::MeshError;
use crate::control::ControlError;
use crate::credential::Ticket;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use wire::SliceId;
use wire::control::SUMMONS_BYTES_MAX;

/// Where a newcomer listens, and the key of the connection to it, sealed for one member. It goes over the running
/// transport, from the bootstrap to that member, and is of no use to anybody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summons {
    address: SocketAddr,
    ticket: Ticket,
}

impl Summons {
    pub(super) fn new(address: SocketAddr, ticket: Ticket) -> Self {
        Self { address, ticket }
    }

    /// The newcomer.
    #[must_use]
    pub fn newcomer(&self) -> SliceId {
        self.ticket.to
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// At most [`SUMMONS_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// None in practice: all its fields have a bound.
    pub fn encode(&self) -> Result<Vec<u8>, MeshError> {
        postcard::to_stdvec(self)
            .map_err(|error| MeshError::Summons(ControlError::Malformed(error)))
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// They are no summons, or too many, or call for the bootstrap.
    pub fn decode(bytes: &[u8]) -> Result<Self, MeshError> {
        let bounds = |what| MeshError::Summons(ControlError::OutOfBounds { what });
        if bytes.len() > SUMMONS_BYTES_MAX {
            return Err(bounds("the length"));
        }
        let (summons, rest) = postcard::take_from_bytes::<Self>(bytes)
            .map_err(|error| MeshError::Summons(ControlError::Malformed(error)))?;
        if !rest.is_empty() {
            return Err(bounds("the length"));
        }
        if summons.newcomer() == SliceId(0) {
            return Err(bounds("the newcomer"));
        }
        Ok(summons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn summons(slice: u16, address: &str) -> Summons {
        let ticket = Ticket { to: SliceId(slice), sealed: [0xff; 32] };
        Summons::new(address.parse().unwrap(), ticket)
    }

    #[test]
    fn largest_summons_round_trips_within_its_bound() {
        let most = summons(u16::MAX, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
        let bytes = most.encode().unwrap();

        assert!(bytes.len() <= SUMMONS_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Summons::decode(&bytes).unwrap(), most);
    }

    #[test]
    fn summons_of_the_bootstrap_or_of_too_many_bytes_is_refused() {
        let bootstrap = summons(0, "10.9.0.2:7100").encode().unwrap();
        let longer = [summons(3, "10.9.0.2:7100").encode().unwrap(), vec![0]].concat();

        for bytes in [bootstrap, longer, vec![0; SUMMONS_BYTES_MAX + 1]] {
            assert!(matches!(Summons::decode(&bytes), Err(MeshError::Summons(_))), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Summons::decode(&bytes);
        }
    }
}
