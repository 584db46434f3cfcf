//! What a slice has of the keys of its VM: all of them, by the secret, or its own and what it was given.

use crate::connection_id::{ConnectionId, VmId};
use crate::key::{Key, Keys, MAC_BYTES, SliceKey, is_slice_key};
use crate::secret::{Secret, SecretError, read};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use wire::{Epoch, SliceId};

impl Keys for Secret {
    fn key(&self, connection: &ConnectionId) -> Option<Key> {
        Some(self.slice_key(connection.to).connection_key(connection))
    }
}

/// The key of the connection to one slice, sealed for the slice that calls it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Whom it is for to call.
    pub to: SliceId,
    /// Of no use to anybody else.
    pub sealed: [u8; MAC_BYTES],
}

/// What one slice has of the keys of its VM.
#[derive(Clone, Debug)]
pub(crate) enum Keyring {
    /// The bootstrap can derive all.
    All(Secret),
    /// A companion: its own, and its tickets, opened.
    Own { own: SliceKey, tickets: BTreeMap<SliceId, Key> },
}

impl Keyring {
    /// A companion's, from what it was assigned.
    pub(crate) fn open(own: SliceKey, vm: VmId, epoch: Epoch, tickets: &[Ticket]) -> Self {
        let ring = Self::Own { own, tickets: BTreeMap::new() };
        tickets.iter().fold(ring, |ring, ticket| ring.with(vm, epoch, ticket))
    }

    /// The same with one ticket more. The bootstrap needs none.
    pub(crate) fn with(mut self, vm: VmId, epoch: Epoch, ticket: &Ticket) -> Self {
        if let Self::Own { own, tickets } = &mut self {
            let mask = own.mask(vm, epoch, ticket.to);
            tickets.insert(ticket.to, Key(Key(ticket.sealed).masked(&mask)));
        }
        self
    }

    /// Whether this slice calls that one, or waits for its call: who has a ticket calls.
    pub(crate) fn calls(&self, peer: SliceId) -> bool {
        match self {
            Self::All(_) => true,
            Self::Own { tickets, .. } => tickets.contains_key(&peer),
        }
    }

    /// For the caller of `connection`, which is no control connection. The bootstrap's to give.
    pub(crate) fn ticket(&self, connection: &ConnectionId) -> Option<Ticket> {
        let Self::All(secret) = self else { return None };
        let mask =
            secret.slice_key(connection.from).mask(connection.vm, connection.epoch, connection.to);
        let key = secret.slice_key(connection.to).connection_key(connection);
        Some(Ticket { to: connection.to, sealed: key.masked(&mask) })
    }
}

impl Keys for Keyring {
    fn key(&self, connection: &ConnectionId) -> Option<Key> {
        match self {
            Self::All(secret) => secret.key(connection),
            Self::Own { own, tickets } if connection.from == own.slice => {
                tickets.get(&connection.to).cloned()
            }
            Self::Own { own, .. } => own.key(connection),
        }
    }
}

/// What a companion is started with.
#[derive(Clone, Debug)]
pub enum Credential {
    /// The VM's secret: it can be any slice.
    Secret(Secret),
    /// The key of one slice: it can be that one.
    Slice(SliceKey),
}

impl Credential {
    /// Takes a file with either, as [`Secret::load`].
    ///
    /// # Errors
    /// As [`Secret::load`], or the file begins like one with a slice's key and is none.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let bytes = read(path)?;
        if !is_slice_key(&bytes) {
            return Ok(Self::Secret(Secret::from_bytes(&bytes)?));
        }
        let malformed = || SecretError::MalformedKey { path: path.to_path_buf() };
        SliceKey::parse(&bytes).map(Self::Slice).ok_or_else(malformed)
    }

    /// The VM's secret, if it is that.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Secret(secret) => Some(secret),
            Self::Slice(_) => None,
        }
    }

    /// The key of that slice, if it can be it.
    pub(crate) fn slice_key(&self, slice: SliceId) -> Option<SliceKey> {
        match self {
            Self::Secret(secret) => Some(secret.slice_key(slice)),
            Self::Slice(own) => (own.slice == slice).then(|| own.clone()),
        }
    }
}

impl From<Secret> for Credential {
    fn from(secret: Secret) -> Self {
        Self::Secret(secret)
    }
}

impl From<SliceKey> for Credential {
    fn from(key: SliceKey) -> Self {
        Self::Slice(key)
    }
}

impl Keys for Credential {
    fn key(&self, connection: &ConnectionId) -> Option<Key> {
        self.slice_key(connection.to).map(|own| own.connection_key(connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Role;
    use crate::key::FILE_WORD;
    use proptest::prelude::*;

    const VM: VmId = VmId([9; 16]);

    fn secret() -> Secret {
        Secret::from_bytes(&[5; 20]).unwrap()
    }

    fn connection(from: u16, to: u16) -> ConnectionId {
        let (from, to) = (SliceId(from), SliceId(to));
        ConnectionId { role: Role::Frames(0), vm: VM, epoch: Epoch(1), from, to }
    }

    fn same(one: Option<Key>, other: &Secret, connection: &ConnectionId) -> bool {
        one.is_some_and(|one| one.0 == other.key(connection).unwrap().0)
    }

    #[test]
    fn ticket_opens_for_its_caller_only() {
        let ticket = Keyring::All(secret()).ticket(&connection(2, 1)).unwrap();
        let ring = |slice: u16| {
            let own = secret().slice_key(SliceId(slice));
            Keyring::open(own, VM, Epoch(1), std::slice::from_ref(&ticket))
        };

        assert!(same(ring(2).key(&connection(2, 1)), &secret(), &connection(2, 1)));
        // Neither what slice 3 opens nor what slice 2 has fits a connection of another caller.
        assert!(!same(ring(3).key(&connection(3, 1)), &secret(), &connection(3, 1)));
        assert!(!same(ring(3).key(&connection(3, 1)), &secret(), &connection(2, 1)));
        assert!(ring(2).key(&connection(3, 1)).is_none());
        // Everybody can check its own callers.
        assert!(same(ring(2).key(&connection(3, 2)), &secret(), &connection(3, 2)));
    }

    #[test]
    fn keys_depend_on_secret_slices_vm_and_epoch() {
        let of = |connection: &ConnectionId| secret().key(connection).unwrap().0;
        let base = of(&connection(2, 1));
        let others = [
            of(&connection(3, 1)),
            of(&connection(2, 3)),
            of(&ConnectionId { vm: VmId([8; 16]), ..connection(2, 1) }),
            of(&ConnectionId { epoch: Epoch(2), ..connection(2, 1) }),
            Secret::from_bytes(&[6; 20]).unwrap().key(&connection(2, 1)).unwrap().0,
        ];
        assert!(others.iter().all(|other| *other != base));
    }

    #[test]
    fn key_file_round_trips() {
        let key = secret().slice_key(SliceId(12));
        let text = key.file_text();

        assert!(is_slice_key(text.as_bytes()));
        let read = SliceKey::parse(text.as_bytes()).unwrap();
        assert_eq!((read.slice, read.key.0), (SliceId(12), key.key.0));
        let rest = |tail: &str| SliceKey::parse(format!("tessera-slice-key {tail}").as_bytes());
        let digits = "0".repeat(64);
        for wrong in ["", "1", &digits, &format!("70000 {digits}"), &format!("1 {digits}0")] {
            assert!(rest(wrong).is_none(), "{wrong}");
        }
        assert!(rest(&format!("1 +{}", &digits[1..])).is_none());
    }

    proptest! {
        #[test]
        fn key_file_of_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
            let _ = SliceKey::parse(&[FILE_WORD, b" 1 ", &bytes].concat());
        }
    }
}
