//! Directory entries as bytes: what a home knows of a page, on its way to the next home.
//!
//! ```text
//! 0 holders u64 | 8 late runs u64 | 16 kind | 17 flags: 1 widely shared, 2 never a replica | 18 zeros
//! ```

use super::types::{DirectoryEntry, HolderKind};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireDirectoryEntry {
    holders: U64,
    late_runs: U64,
    kind: u8,
    flags: u8,
    pad: [u8; 6],
}

/// Bytes of an entry.
pub(super) const DIRECTORY_ENTRY_BYTES: usize = size_of::<WireDirectoryEntry>();

const _: () = assert!(DIRECTORY_ENTRY_BYTES == 24);

const FLAG_WIDELY_SHARED: u8 = 1;
const FLAG_NEVER_REPLICA: u8 = 2;

impl DirectoryEntry {
    /// Appends the entry.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let widely_shared = if self.widely_shared { FLAG_WIDELY_SHARED } else { 0 };
        let never_replica = if self.never_replica { FLAG_NEVER_REPLICA } else { 0 };
        let wire = WireDirectoryEntry {
            holders: self.holders.into(),
            late_runs: self.late_runs.into(),
            kind: kind_code(self.kind),
            flags: widely_shared | never_replica,
            pad: [0; 6],
        };
        out.extend_from_slice(wire.as_bytes());
    }

    /// Reads an entry; the error names the field that is none.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let wire = WireDirectoryEntry::read_from_bytes(bytes).map_err(|_| "entry")?;
        if wire.flags & !(FLAG_WIDELY_SHARED | FLAG_NEVER_REPLICA) != 0 || wire.pad != [0; 6] {
            return Err("flags of an entry");
        }
        Ok(Self {
            holders: wire.holders.get(),
            kind: decode_kind(wire.kind).ok_or("kind of an entry")?,
            widely_shared: wire.flags & FLAG_WIDELY_SHARED != 0,
            never_replica: wire.flags & FLAG_NEVER_REPLICA != 0,
            late_runs: wire.late_runs.get(),
        })
    }
}

fn kind_code(kind: HolderKind) -> u8 {
    match kind {
        HolderKind::Shared => 0,
        HolderKind::Exclusive => 1,
        HolderKind::ExclusiveGrant => 2,
        HolderKind::Replicated => 3,
    }
}

fn decode_kind(code: u8) -> Option<HolderKind> {
    match code {
        0 => Some(HolderKind::Shared),
        1 => Some(HolderKind::Exclusive),
        2 => Some(HolderKind::ExclusiveGrant),
        3 => Some(HolderKind::Replicated),
        _ => None,
    }
}
