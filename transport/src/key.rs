//! Keys of slices and connections, derived from the secret of the VM.
//!
//! ```text
//!  secret --slice--> slice key K(n) --VM, epoch, caller--> connection key K(n, caller)
//!                        |
//!                        +-- seals the tickets that slice n is given
//! ```
//!
//! The listener of a connection derives its key from its own slice key and from who the caller says that
//! it is. A caller cannot: it needs the listener's slice key. The bootstrap has the secret, so it knows
//! all keys; a companion is given a *ticket* for each slice that it will call, which is the key of that one
//! connection, sealed for this companion. So a companion that was given only its own slice key can
//! neither call as another slice nor listen as one.

use crate::handshake::{Party, VmId};
use crate::secret::{MAC_BYTES, Secret, SecretError, read};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use wire::{Epoch, SliceId};

const LABEL_SLICE: &[u8] = b"tessera slice key 1";
const LABEL_CONNECTION: &[u8] = b"tessera connection key 1";
const LABEL_TICKET: &[u8] = b"tessera ticket 1";
/// What the file of a slice's key begins with; its number and 64 hexadecimal digits follow.
const FILE_WORD: &[u8] = b"tessera-slice-key";

/// HMAC-SHA256 over a label and parts of fixed size.
fn mac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(label);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// The key of one connection. Cheap to clone, never printed.
#[derive(Clone)]
pub struct Key([u8; MAC_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub(crate) fn derive(from: &[u8], label: &[u8], parts: &[&[u8]]) -> Self {
        Self(mac(from, label, parts).finalize().into_bytes().into())
    }

    /// Proves knowledge of the key for `label` and a transcript of fixed-size parts.
    pub(crate) fn sign(&self, label: &[u8], transcript: &[&[u8]]) -> [u8; MAC_BYTES] {
        mac(&self.0, label, transcript).finalize().into_bytes().into()
    }

    /// Checks a proof in constant time.
    pub(crate) fn verify(&self, label: &[u8], transcript: &[&[u8]], proof: &[u8]) -> bool {
        mac(&self.0, label, transcript).verify_slice(proof).is_ok()
    }

    /// Seals or opens: the mask is used for one key only.
    fn masked(&self, mask: &Self) -> [u8; MAC_BYTES] {
        let mut bytes = self.0;
        bytes.iter_mut().zip(mask.0).for_each(|(byte, mask)| *byte ^= mask);
        bytes
    }
}

/// Whoever can take part in handshakes.
pub trait Keys {
    /// The key of a connection; none where this side has none, and cannot prove or check anything.
    fn key(&self, party: &Party) -> Option<Key>;
}

impl Keys for Secret {
    fn key(&self, party: &Party) -> Option<Key> {
        Some(self.slice_key(party.to).connection(party))
    }
}

/// The key of a slice: with it a companion proves that it is that slice, and no other.
#[derive(Clone, Debug)]
pub struct SliceKey {
    slice: SliceId,
    key: Key,
}

impl SliceKey {
    pub(crate) fn new(slice: SliceId, key: Key) -> Self {
        Self { slice, key }
    }

    /// Whose it is.
    #[must_use]
    pub fn slice(&self) -> SliceId {
        self.slice
    }

    /// The content of the file that a companion is given as its `--secret-file`.
    #[must_use]
    pub fn file_text(&self) -> String {
        let word = String::from_utf8_lossy(FILE_WORD);
        let digits: String = self.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{word} {} {digits}\n", self.slice.0)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.trim_end().split(' ').skip(1);
        let (slice, digits) = (words.next()?.parse().ok()?, words.next()?);
        let good = digits.len() == 2 * MAC_BYTES && digits.bytes().all(|d| d.is_ascii_hexdigit());
        if !good || words.next().is_some() {
            return None;
        }
        let mut key = [0; MAC_BYTES];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self::new(SliceId(slice), Key(key)))
    }

    /// Key of a connection to this slice.
    fn connection(&self, party: &Party) -> Key {
        let (epoch, from) = (party.epoch.0.to_le_bytes(), party.from.0.to_le_bytes());
        Key::derive(&self.key.0, LABEL_CONNECTION, &[&party.vm.0, &epoch, &from])
    }

    fn mask(&self, vm: VmId, epoch: Epoch, to: SliceId) -> Key {
        let (epoch, to) = (epoch.0.to_le_bytes(), to.0.to_le_bytes());
        Key::derive(&self.key.0, LABEL_TICKET, &[&vm.0, &epoch, &to])
    }
}

impl Keys for SliceKey {
    fn key(&self, party: &Party) -> Option<Key> {
        (party.to == self.slice).then(|| self.connection(party))
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
        let open = |ticket: &Ticket| {
            let mask = own.mask(vm, epoch, ticket.to);
            (ticket.to, Key(Key(ticket.sealed).masked(&mask)))
        };
        let tickets = tickets.iter().map(open).collect();
        Self::Own { own, tickets }
    }

    /// For the caller of `party`, which is no control connection. The bootstrap's to give.
    pub(crate) fn ticket(&self, party: &Party) -> Option<Ticket> {
        let Self::All(secret) = self else { return None };
        let mask = secret.slice_key(party.from).mask(party.vm, party.epoch, party.to);
        let key = secret.slice_key(party.to).connection(party);
        Some(Ticket { to: party.to, sealed: key.masked(&mask) })
    }
}

impl Keys for Keyring {
    fn key(&self, party: &Party) -> Option<Key> {
        match self {
            Self::All(secret) => secret.key(party),
            Self::Own { own, tickets } if party.from == own.slice => {
                tickets.get(&party.to).cloned()
            }
            Self::Own { own, .. } => own.key(party),
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
    fn key(&self, party: &Party) -> Option<Key> {
        self.slice_key(party.to).map(|own| own.connection(party))
    }
}

/// Whether the file is one with the key of a slice.
pub(crate) fn is_slice_key(bytes: &[u8]) -> bool {
    bytes.strip_prefix(FILE_WORD).is_some_and(|rest| rest.first() == Some(&b' '))
}

/// Derives the key of a slice from the bytes of a secret.
pub(crate) fn slice_key(secret: &[u8], slice: SliceId) -> SliceKey {
    SliceKey::new(slice, Key::derive(secret, LABEL_SLICE, &[&slice.0.to_le_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Role;
    use proptest::prelude::*;

    const VM: VmId = VmId([9; 16]);

    fn secret() -> Secret {
        Secret::from_bytes(&[5; 20]).unwrap()
    }

    fn party(from: u16, to: u16) -> Party {
        let (from, to) = (SliceId(from), SliceId(to));
        Party { role: Role::Frames(0), vm: VM, epoch: Epoch(1), from, to }
    }

    fn same(one: Option<Key>, other: &Secret, party: &Party) -> bool {
        one.is_some_and(|one| one.0 == other.key(party).unwrap().0)
    }

    #[test]
    fn ticket_opens_for_its_caller_only() {
        let ticket = Keyring::All(secret()).ticket(&party(2, 1)).unwrap();
        let ring = |slice: u16| {
            let own = secret().slice_key(SliceId(slice));
            Keyring::open(own, VM, Epoch(1), std::slice::from_ref(&ticket))
        };

        assert!(same(ring(2).key(&party(2, 1)), &secret(), &party(2, 1)));
        // Neither what slice 3 opens nor what slice 2 has fits a connection of another caller.
        assert!(!same(ring(3).key(&party(3, 1)), &secret(), &party(3, 1)));
        assert!(!same(ring(3).key(&party(3, 1)), &secret(), &party(2, 1)));
        assert!(ring(2).key(&party(3, 1)).is_none());
        // Everybody can check its own callers.
        assert!(same(ring(2).key(&party(3, 2)), &secret(), &party(3, 2)));
    }

    #[test]
    fn keys_depend_on_secret_slices_vm_and_epoch() {
        let of = |party: &Party| secret().key(party).unwrap().0;
        let base = of(&party(2, 1));
        let others = [
            of(&party(3, 1)),
            of(&party(2, 3)),
            of(&Party { vm: VmId([8; 16]), ..party(2, 1) }),
            of(&Party { epoch: Epoch(2), ..party(2, 1) }),
            Secret::from_bytes(&[6; 20]).unwrap().key(&party(2, 1)).unwrap().0,
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
