//! Messages of the coherence protocol and their fixed layout.
//!
//! Every message is a 32-byte little-endian head, followed by nothing, by one page, or by table
//! entries. `docs/protocol/coherence.md` says who sends what and when.
//!
//! ```text
//! 0 kind | 1 access | 2 level | 3 flags | 4 epoch u32 | 8 gfn u64 | 16 slice u16 | 18 count u16 | 20 tag u32 | 24 wide u64
//! ```

pub mod batch;

use crate::{Epoch, Gfn, SliceId, VcpuId};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page. The unit of coherence.
pub const PAGE_SIZE: usize = 4096;
/// Bytes of a message head.
pub const HEAD_BYTES: usize = 32;
/// The most entries that one message carries, so that a message always fits a frame.
pub const ENTRIES_MAX: usize = 1024;
/// The most pages that one request asks for.
pub const RUN_MAX: u16 = 64;

/// What a slice may do with its copy of a page. Ordered: more access is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// No copy.
    #[default]
    None,
    /// A copy that others may have too.
    Read,
    /// The only copy.
    Write,
}

/// Level of a page-table page: 4 is the root (PML4), 1 holds leaf entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The root of a four-level table.
    pub const ROOT: Self = Self(4);
    /// The level below, if this level's entries point to tables.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        Self::new(self.0 - 1)
    }
    /// A level from 1 to 4.
    #[must_use]
    pub fn new(level: u8) -> Option<Self> {
        (1..=4).contains(&level).then_some(Self(level))
    }
    /// The number, 1 to 4.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Whose translations a page-table page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// The kernel's: the upper half of a root, or a root itself, since each has that half.
    Kernel,
    /// A process's: reachable from the lower half of a root.
    User,
}

/// What kind of page-table page a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Its level.
    pub level: Level,
    /// Whose it is.
    pub half: Half,
}

impl Table {
    /// A root.
    pub const ROOT: Self = Self { level: Level::ROOT, half: Half::Kernel };

    /// As one byte: the level, and [`USER_TABLE`].
    fn code(self) -> u8 {
        self.level.get() | if self.half == Half::User { USER_TABLE } else { 0 }
    }

    fn decode(code: u8) -> Option<Self> {
        let half = if code & USER_TABLE == 0 { Half::Kernel } else { Half::User };
        Level::new(code & !USER_TABLE).map(|level| Self { level, half })
    }
}

/// Set in the level byte of a table of a process.
const USER_TABLE: u8 = 0x80;

/// One changed entry of a replicated page-table page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The page.
    pub gfn: Gfn,
    /// Index of the 8-byte entry, 0 to 511.
    pub index: u16,
    /// What the sender's twin held.
    pub old: u64,
    /// What the sender's page holds.
    pub new: u64,
}

/// What follows the head of [`Message::Data`] and [`Message::Offer`] on the wire. The protocol does
/// not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageBody<'a> {
    /// The page is all zeros; no bytes travel.
    Zero,
    /// The 4096 bytes.
    Bytes(&'a [u8]),
    /// The sender wrote the page where the receiver keeps it before it sent the message (RDMA); only
    /// [`Message::Data`] says so. Whoever has not lent its memory to the sender must refuse this.
    Placed,
}

/// A message between two slices about one page, or about replicated page tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// Requester to home: give me this access. `table` is set when the requester knows that the page
    /// is a page-table page and asks for a replica.
    Get {
        /// The page.
        gfn: Gfn,
        /// Read or write.
        want: Access,
        /// What kind of table page.
        table: Option<Table>,
    },
    /// Requester to home: as a [`Message::Get`] for each of these neighbouring pages.
    GetRun {
        /// The first page.
        gfn: Gfn,
        /// How many, 1 to [`RUN_MAX`].
        pages: u16,
        /// Read or write.
        want: Access,
    },
    /// Converter or heir to home: done; the next request may be served.
    Confirm {
        /// The page.
        gfn: Gfn,
        /// What the requester holds now.
        held: Held,
        /// The heir of a table had asked for the page in a run before it became a replica. That request may
        /// still be on its way, for runs have a stream of their own.
        asked: bool,
    },
    /// Home to a holder: send the page to `requester` and keep at most `keep`.
    Fetch {
        /// The page.
        gfn: Gfn,
        /// Who gets it.
        requester: SliceId,
        /// What the holder keeps.
        keep: Access,
        /// Invalidation acknowledgements that the requester must await.
        acks: u16,
        /// True when the holder has the only copy, or will have it once what is on its way is there.
        owner: bool,
        /// Set when the requester is to make replicas of the page.
        table: Option<Table>,
    },
    /// Home to a holder: drop the page and tell `requester`. Also converter to everyone: the offered
    /// replica will not be, drop it and tell me.
    Invalidate {
        /// The page.
        gfn: Gfn,
        /// Who waits for the acknowledgement.
        requester: SliceId,
        /// How many acknowledgements the requester awaits, if they are all that it awaits.
        upgrade: u16,
    },
    /// Home to a requester that has a current copy: write it once `acks` have come. Left out where
    /// there are acknowledgements that say so themselves.
    Grant {
        /// The page.
        gfn: Gfn,
        /// Acknowledgements to await.
        acks: u16,
        /// Set when the requester is to make replicas of the page.
        table: Option<Table>,
    },
    /// Holder to requester: the page. The body travels behind the head.
    Data {
        /// The page.
        gfn: Gfn,
        /// What the requester may do once `acks` have come.
        access: Access,
        /// Acknowledgements to await.
        acks: u16,
        /// For how long the holder kept it after it had been asked, in microseconds.
        held_us: u32,
        /// Set when the requester is to make replicas of the page.
        table: Option<Table>,
    },
    /// Former holder to requester: dropped.
    Acked {
        /// The page.
        gfn: Gfn,
        /// With so many of these, the requester's copy is the only one. 0 when page or `Grant` tells.
        upgrade: u16,
        /// For how long the holder kept it after it had been asked, in microseconds.
        held_us: u32,
    },
    /// Requester to everyone: keep this replica, do not use it yet. The body travels behind the head.
    Offer {
        /// The page.
        gfn: Gfn,
        /// What kind of table page.
        table: Table,
    },
    /// Answer to an offer: kept.
    Ready {
        /// The page.
        gfn: Gfn,
    },
    /// Requester to everyone: all have the replica, use it.
    Go {
        /// The page.
        gfn: Gfn,
    },
    /// Flusher to everyone: entries that changed since the last flush.
    Diff {
        /// Number of the flush, unique per sender.
        flush: u64,
        /// The entries, parents before children. At most [`ENTRIES_MAX`].
        entries: Vec<Entry>,
    },
    /// Answer to a diff: applied.
    DiffDone {
        /// Number of the flush.
        flush: u64,
    },
    /// Anyone to home: this page must not be replicated any more; I take it.
    Demote {
        /// The page.
        gfn: Gfn,
        /// True when two slices changed the same entry: never replicate this page again.
        conflict: bool,
    },
    /// Home to members: drop the replica and send what is not flushed to `heir`.
    Leave {
        /// The page.
        gfn: Gfn,
        /// The next owner.
        heir: SliceId,
        /// True when the home dropped a request of this member because the page was a replica. A
        /// request that was not dropped is still on its way and will be served.
        dropped: bool,
    },
    /// Member to heir: dropped; these entries were not flushed.
    Left {
        /// The page.
        gfn: Gfn,
        /// The last changes. At most 512.
        entries: Vec<Entry>,
    },
    /// Home to everyone but the heir: all have left the replica.
    Demoted {
        /// The page.
        gfn: Gfn,
    },
    /// To everyone: this vCPU's current page-table root.
    Root {
        /// The vCPU.
        vcpu: VcpuId,
        /// Frame of CR3.
        gfn: Gfn,
    },
}

/// What a requester holds when it confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// The only copy.
    Exclusive,
    /// A replica, as everyone else does.
    Replica,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Shorter than the head, or than the head says.
    #[error("decode a coherence message: {have} bytes where {need} are needed")]
    Length {
        /// Bytes there are.
        have: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// A kind that this version does not know.
    #[error("decode a coherence message: unknown kind {0}")]
    Kind(u8),
    /// A field outside its range.
    #[error("decode a coherence message of kind {kind}: field {field} is out of range")]
    Field {
        /// The kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    kind: u8,
    access: u8,
    level: u8,
    flags: u8,
    epoch: U32,
    gfn: U64,
    slice: U16,
    count: U16,
    tag: U32,
    wide: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireEntry {
    gfn: U64,
    index: U16,
    pad: [u8; 6],
    old: U64,
    new: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);
const _: () = assert!(size_of::<WireEntry>() == 32);

const FLAG_BODY: u8 = 1;
const FLAG_CONFLICT: u8 = 2;
const FLAG_DROPPED: u8 = 4;
const FLAG_OWNER: u8 = 8;
const FLAG_PLACED: u8 = 16;
const FLAG_ASKED: u8 = 32;

/// Kinds on the wire. Their numbers never change meaning.
mod kind {
    pub(super) const GET: u8 = 1;
    pub(super) const CONFIRM: u8 = 2;
    pub(super) const FETCH: u8 = 3;
    pub(super) const INVALIDATE: u8 = 4;
    pub(super) const GRANT: u8 = 5;
    pub(super) const DATA: u8 = 6;
    pub(super) const ACKED: u8 = 7;
    pub(super) const OFFER: u8 = 8;
    pub(super) const READY: u8 = 9;
    pub(super) const GO: u8 = 10;
    pub(super) const DIFF: u8 = 11;
    pub(super) const DIFF_DONE: u8 = 12;
    pub(super) const DEMOTE: u8 = 13;
    pub(super) const LEAVE: u8 = 14;
    pub(super) const LEFT: u8 = 15;
    pub(super) const DEMOTED: u8 = 16;
    pub(super) const ROOT: u8 = 17;
    pub(super) const GET_RUN: u8 = 18;
    pub(super) const DATA_BATCH: u8 = 19;
}

impl Message {
    /// True when a page body travels behind the head.
    #[must_use]
    pub fn has_body(&self) -> bool {
        matches!(self, Self::Data { .. } | Self::Offer { .. })
    }

    /// True for what a run is asked for with, and for the pages that answer it: it may overtake other
    /// messages of its pair of slices, and be overtaken. All others of a pair arrive in order.
    #[must_use]
    pub fn is_of_run(&self) -> bool {
        matches!(self, Self::GetRun { .. } | Self::Data { acks: 0, table: None, .. })
    }

    /// The page that the message is about, if it is about one.
    #[must_use]
    pub fn gfn(&self) -> Option<Gfn> {
        match *self {
            Self::Get { gfn, .. }
            | Self::GetRun { gfn, .. }
            | Self::Confirm { gfn, .. }
            | Self::Fetch { gfn, .. }
            | Self::Invalidate { gfn, .. }
            | Self::Grant { gfn, .. }
            | Self::Data { gfn, .. }
            | Self::Acked { gfn, .. }
            | Self::Offer { gfn, .. }
            | Self::Ready { gfn }
            | Self::Go { gfn }
            | Self::Demote { gfn, .. }
            | Self::Leave { gfn, .. }
            | Self::Left { gfn, .. }
            | Self::Demoted { gfn }
            | Self::Root { gfn, .. } => Some(gfn),
            Self::Diff { .. } | Self::DiffDone { .. } => None,
        }
    }

    /// Appends head and entries to `out`. A page body is the caller's to append; `body` says
    /// whether it will (a page of zeros travels without).
    pub fn encode(&self, epoch: Epoch, body: bool, out: &mut Vec<u8>) {
        let (head, entries) = self.to_head(epoch, body);
        out.extend_from_slice(head.as_bytes());
        for entry in entries {
            let wire = WireEntry {
                gfn: entry.gfn.0.into(),
                index: entry.index.into(),
                pad: [0; 6],
                old: entry.old.into(),
                new: entry.new.into(),
            };
            out.extend_from_slice(wire.as_bytes());
        }
    }

    /// Appends the head of a message whose page was written into the receiver's memory already.
    ///
    /// # Panics
    /// For any other message than [`Message::Data`].
    pub fn encode_placed(&self, epoch: Epoch, out: &mut Vec<u8>) {
        assert!(matches!(self, Self::Data { .. }), "only data is placed");
        let (mut head, _) = self.to_head(epoch, false);
        head.flags |= FLAG_PLACED;
        out.extend_from_slice(head.as_bytes());
    }

    fn to_head(&self, epoch: Epoch, body: bool) -> (Head, &[Entry]) {
        let mut head = Head { epoch: epoch.0.into(), ..Head::default() };
        head.gfn = self.gfn().unwrap_or_default().0.into();
        head.flags = if body { FLAG_BODY } else { 0 };
        let list: &[Entry] = match self {
            Self::Diff { entries, .. } | Self::Left { entries, .. } => entries,
            _ => &[],
        };
        let count = u16::try_from(list.len()).expect("at most ENTRIES_MAX entries in a message");
        head.count = count.into();
        head.kind = self.kind();
        self.fill_head(&mut head);
        (head, list)
    }

    /// Number of this kind.
    fn kind(&self) -> u8 {
        match self {
            Self::Get { .. } => kind::GET,
            Self::GetRun { .. } => kind::GET_RUN,
            Self::Confirm { .. } => kind::CONFIRM,
            Self::Fetch { .. } => kind::FETCH,
            Self::Invalidate { .. } => kind::INVALIDATE,
            Self::Grant { .. } => kind::GRANT,
            Self::Data { .. } => kind::DATA,
            Self::Acked { .. } => kind::ACKED,
            Self::Offer { .. } => kind::OFFER,
            Self::Ready { .. } => kind::READY,
            Self::Go { .. } => kind::GO,
            Self::Diff { .. } => kind::DIFF,
            Self::DiffDone { .. } => kind::DIFF_DONE,
            Self::Demote { .. } => kind::DEMOTE,
            Self::Leave { .. } => kind::LEAVE,
            Self::Left { .. } => kind::LEFT,
            Self::Demoted { .. } => kind::DEMOTED,
            Self::Root { .. } => kind::ROOT,
        }
    }

    /// Writes the fields of this kind.
    fn fill_head(&self, head: &mut Head) {
        match self {
            Self::Get { want, table, .. } => {
                head.access = access_code(*want);
                head.level = table_code(*table);
            }
            Self::GetRun { pages, want, .. } => {
                head.access = access_code(*want);
                head.count = (*pages).into();
            }
            Self::Confirm { held, asked, .. } => {
                head.access = held_code(*held);
                head.flags |= if *asked { FLAG_ASKED } else { 0 };
            }
            Self::Fetch { requester, keep, acks, owner, table, .. } => {
                head.flags |= if *owner { FLAG_OWNER } else { 0 };
                head.slice = requester.0.into();
                head.access = access_code(*keep);
                head.count = (*acks).into();
                head.level = table_code(*table);
            }
            Self::Invalidate { requester, upgrade, .. } => {
                head.slice = requester.0.into();
                head.count = (*upgrade).into();
            }
            Self::Grant { acks, table, .. } => {
                head.count = (*acks).into();
                head.level = table_code(*table);
            }
            Self::Data { access, acks, held_us, table, .. } => {
                head.tag = (*held_us).into();
                head.access = access_code(*access);
                head.count = (*acks).into();
                head.level = table_code(*table);
            }
            Self::Acked { upgrade, held_us, .. } => {
                head.tag = (*held_us).into();
                head.count = (*upgrade).into();
            }
            Self::Offer { table, .. } => {
                head.level = table.code();
            }
            // They are about no page of their own.
            Self::Diff { flush, .. } | Self::DiffDone { flush } => {
                head.gfn = (*flush).into();
            }
            Self::Demote { conflict, .. } => {
                head.flags |= if *conflict { FLAG_CONFLICT } else { 0 };
            }
            Self::Leave { heir, dropped, .. } => {
                head.slice = heir.0.into();
                head.flags |= if *dropped { FLAG_DROPPED } else { 0 };
            }
            Self::Root { vcpu, .. } => {
                head.tag = vcpu.0.into();
            }
            Self::Ready { .. } | Self::Go { .. } | Self::Left { .. } | Self::Demoted { .. } => {}
        }
    }

    /// Reads a message and the page body behind it.
    ///
    /// # Errors
    /// Any byte string that is not exactly one message of this version.
    pub fn decode(bytes: &[u8]) -> Result<(Epoch, Self, Option<PageBody<'_>>), DecodeError> {
        let (head, rest) = Head::read_from_prefix(bytes)
            .map_err(|_| DecodeError::Length { have: bytes.len(), need: HEAD_BYTES })?;
        let epoch = Epoch(head.epoch.get());
        let message = from_head(&head, rest)?;
        let tail = match message {
            Self::Diff { .. } | Self::Left { .. } => 0,
            _ if message.has_body() && head.flags & FLAG_BODY != 0 => PAGE_SIZE,
            _ => 0,
        };
        let entries = entry_bytes(&head);
        if rest.len() != tail + entries {
            let need = HEAD_BYTES + tail + entries;
            return Err(DecodeError::Length { have: bytes.len(), need });
        }
        let placed = head.flags & FLAG_PLACED != 0;
        if placed && (tail != 0 || head.kind != kind::DATA) {
            return Err(DecodeError::Field { kind: head.kind, field: "placed" });
        }
        let page = match tail {
            0 if placed => PageBody::Placed,
            0 => PageBody::Zero,
            _ => PageBody::Bytes(rest),
        };
        let body = message.has_body().then_some(page);
        Ok((epoch, message, body))
    }
}

fn from_head(head: &Head, rest: &[u8]) -> Result<Message, DecodeError> {
    let gfn = Gfn(head.gfn.get());
    let field = |field| DecodeError::Field { kind: head.kind, field };
    let access = || decode_access(head.access).ok_or_else(|| field("access"));
    let table = || decode_table(head.level).ok_or_else(|| field("level"));
    let slice = SliceId(head.slice.get());
    let acks = head.count.get();
    Ok(match head.kind {
        kind::GET => Message::Get { gfn, want: access()?, table: table()? },
        kind::GET_RUN if !(1..=RUN_MAX).contains(&acks) => return Err(field("pages")),
        kind::GET_RUN => Message::GetRun { gfn, pages: acks, want: access()? },
        kind::CONFIRM => {
            let held = decode_held(head.access).ok_or_else(|| field("held"))?;
            Message::Confirm { gfn, held, asked: head.flags & FLAG_ASKED != 0 }
        }
        kind::FETCH => {
            let owner = head.flags & FLAG_OWNER != 0;
            Message::Fetch { gfn, requester: slice, keep: access()?, acks, owner, table: table()? }
        }
        kind::INVALIDATE => Message::Invalidate { gfn, requester: slice, upgrade: acks },
        kind::GRANT => Message::Grant { gfn, acks, table: table()? },
        kind::DATA => {
            let held_us = head.tag.get();
            Message::Data { gfn, access: access()?, acks, held_us, table: table()? }
        }
        kind::ACKED => Message::Acked { gfn, upgrade: acks, held_us: head.tag.get() },
        kind::OFFER => {
            Message::Offer { gfn, table: Table::decode(head.level).ok_or_else(|| field("level"))? }
        }
        kind::READY => Message::Ready { gfn },
        kind::GO => Message::Go { gfn },
        kind::DIFF => Message::Diff { flush: head.gfn.get(), entries: decode_entries(head, rest)? },
        kind::DIFF_DONE => Message::DiffDone { flush: head.gfn.get() },
        kind::DEMOTE => Message::Demote { gfn, conflict: head.flags & FLAG_CONFLICT != 0 },
        kind::LEAVE => Message::Leave { gfn, heir: slice, dropped: head.flags & FLAG_DROPPED != 0 },
        kind::LEFT => Message::Left { gfn, entries: decode_entries(head, rest)? },
        kind::DEMOTED => Message::Demoted { gfn },
        kind::ROOT => Message::Root { vcpu: VcpuId(head.tag.get()), gfn },
        other => return Err(DecodeError::Kind(other)),
    })
}

fn entry_bytes(head: &Head) -> usize {
    match head.kind {
        kind::DIFF | kind::LEFT => usize::from(head.count.get()) * size_of::<WireEntry>(),
        _ => 0,
    }
}

fn decode_entries(head: &Head, rest: &[u8]) -> Result<Vec<Entry>, DecodeError> {
    let count = usize::from(head.count.get());
    if count > ENTRIES_MAX {
        return Err(DecodeError::Field { kind: head.kind, field: "count" });
    }
    let need = count * size_of::<WireEntry>();
    if rest.len() != need {
        return Err(DecodeError::Length { have: HEAD_BYTES + rest.len(), need: HEAD_BYTES + need });
    }
    rest.chunks_exact(size_of::<WireEntry>())
        .map(|chunk| {
            let wire = WireEntry::read_from_bytes(chunk)
                .map_err(|_| DecodeError::Field { kind: head.kind, field: "entry" })?;
            let index = wire.index.get();
            if index >= 512 {
                return Err(DecodeError::Field { kind: head.kind, field: "index" });
            }
            Ok(Entry { gfn: Gfn(wire.gfn.get()), index, old: wire.old.get(), new: wire.new.get() })
        })
        .collect()
}

fn access_code(access: Access) -> u8 {
    match access {
        Access::None => 0,
        Access::Read => 1,
        Access::Write => 2,
    }
}

fn decode_access(code: u8) -> Option<Access> {
    match code {
        0 => Some(Access::None),
        1 => Some(Access::Read),
        2 => Some(Access::Write),
        _ => None,
    }
}

fn held_code(held: Held) -> u8 {
    match held {
        Held::Exclusive => 2,
        Held::Replica => 3,
    }
}

fn decode_held(code: u8) -> Option<Held> {
    match code {
        2 => Some(Held::Exclusive),
        3 => Some(Held::Replica),
        _ => None,
    }
}

fn table_code(table: Option<Table>) -> u8 {
    table.map_or(0, Table::code)
}

fn decode_table(code: u8) -> Option<Option<Table>> {
    match code {
        0 => Some(None),
        _ => Table::decode(code).map(Some),
    }
}
