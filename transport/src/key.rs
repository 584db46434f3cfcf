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

use crate::connection_id::{ConnectionId, VmId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use wire::{Epoch, SliceId};

/// Bytes of a proof.
pub(crate) const MAC_BYTES: usize = 32;
const LABEL_SLICE: &[u8] = b"tessera slice key 1";
const LABEL_CONNECTION: &[u8] = b"tessera connection key 1";
const LABEL_TICKET: &[u8] = b"tessera ticket 1";
/// What the file of a slice's key begins with; its number and 64 hexadecimal digits follow.
pub(crate) const FILE_WORD: &[u8] = b"tessera-slice-key";

/// HMAC-SHA256 over a label and parts of fixed size.
fn mac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(label);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// The key of one connection. Cheap to clone, never printed.
#[derive(Clone)]
pub struct Key(pub(crate) [u8; MAC_BYTES]);

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
    pub(crate) fn masked(&self, mask: &Self) -> [u8; MAC_BYTES] {
        let mut bytes = self.0;
        bytes.iter_mut().zip(mask.0).for_each(|(byte, mask)| *byte ^= mask);
        bytes
    }
}

/// Whoever can take part in handshakes.
pub trait Keys {
    /// The key of a connection; none where this side has none, and cannot prove or check anything.
    fn key(&self, connection: &ConnectionId) -> Option<Key>;
}

/// The key of a slice: with it a companion proves that it is that slice, and no other.
#[derive(Clone, Debug)]
pub struct SliceKey {
    pub(crate) slice: SliceId,
    pub(crate) key: Key,
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

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
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
    pub(crate) fn connection_key(&self, connection: &ConnectionId) -> Key {
        let (epoch, from) = (connection.epoch.0.to_le_bytes(), connection.from.0.to_le_bytes());
        Key::derive(&self.key.0, LABEL_CONNECTION, &[&connection.vm.0, &epoch, &from])
    }

    pub(crate) fn mask(&self, vm: VmId, epoch: Epoch, to: SliceId) -> Key {
        let (epoch, to) = (epoch.0.to_le_bytes(), to.0.to_le_bytes());
        Key::derive(&self.key.0, LABEL_TICKET, &[&vm.0, &epoch, &to])
    }
}

impl Keys for SliceKey {
    fn key(&self, connection: &ConnectionId) -> Option<Key> {
        (connection.to == self.slice).then(|| self.connection_key(connection))
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
