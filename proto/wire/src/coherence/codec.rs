//! Messages as bytes.

use super::directory::DIRECTORY_ENTRY_BYTES;
use super::error::DecodeError;
use super::message::{Message, PageBody};
use super::sizes::{ENTRIES_MAX, HEAD_BYTES, HOME_MOVE_MAX, PAGE_SIZE, RUN_MAX};
use super::types::{Access, Asked, DirectoryEntry, Entry, Held, Table};
use crate::{Epoch, Gfn, SliceId, VcpuId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) access: u8,
    pub(super) level: u8,
    pub(super) flags: u8,
    pub(super) epoch: U32,
    pub(super) gfn: U64,
    pub(super) slice: U16,
    pub(super) count: U16,
    pub(super) tag: U32,
    pub(super) wide: U64,
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

pub(super) const FLAG_BODY: u8 = 1;
const FLAG_CONFLICT: u8 = 2;
const FLAG_DROPPED: u8 = 4;
const FLAG_OWNER: u8 = 8;
pub(super) const FLAG_REMOTE_WRITTEN: u8 = 16;
const FLAG_ASKED: u8 = 32;
const FLAG_LATE_RUN: u8 = 64;

/// Kinds on the wire. Their numbers never change meaning.
pub(super) mod kind {
    pub(in crate::coherence) const GET: u8 = 1;
    pub(in crate::coherence) const CONFIRM: u8 = 2;
    pub(in crate::coherence) const FETCH: u8 = 3;
    pub(in crate::coherence) const INVALIDATE: u8 = 4;
    pub(in crate::coherence) const GRANT: u8 = 5;
    pub(in crate::coherence) const DATA: u8 = 6;
    pub(in crate::coherence) const ACKED: u8 = 7;
    pub(in crate::coherence) const OFFER: u8 = 8;
    pub(in crate::coherence) const READY: u8 = 9;
    pub(in crate::coherence) const GO: u8 = 10;
    pub(in crate::coherence) const DIFF: u8 = 11;
    pub(in crate::coherence) const DIFF_DONE: u8 = 12;
    pub(in crate::coherence) const DEMOTE: u8 = 13;
    pub(in crate::coherence) const LEAVE: u8 = 14;
    pub(in crate::coherence) const LEFT: u8 = 15;
    pub(in crate::coherence) const DEMOTED: u8 = 16;
    pub(in crate::coherence) const ROOT: u8 = 17;
    pub(in crate::coherence) const GET_RUN: u8 = 18;
    pub(in crate::coherence) const DATA_BATCH: u8 = 19;
    pub(in crate::coherence) const MOVE_HOME: u8 = 20;
    pub(in crate::coherence) const HOME_LEAVES: u8 = 21;
    pub(in crate::coherence) const HOME_AWAITED: u8 = 22;
    pub(in crate::coherence) const HOME_REQUEST: u8 = 23;
    pub(in crate::coherence) const HOME_ENTRIES: u8 = 24;
    pub(in crate::coherence) const HOME_MOVED: u8 = 25;
}

impl Message {
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
        if let Self::HomeEntries { entries, .. } = self {
            entries.iter().for_each(|entry| entry.encode(out));
        }
    }

    /// Appends the head of a message whose page was written into the receiver's memory already.
    ///
    /// # Panics
    /// For any other message than [`Message::Data`].
    pub fn encode_remote_written(&self, epoch: Epoch, out: &mut Vec<u8>) {
        assert!(matches!(self, Self::Data { .. }), "only data is written remotely");
        let (mut head, _) = self.to_head(epoch, false);
        head.flags |= FLAG_REMOTE_WRITTEN;
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
            Self::MoveHome { .. } => kind::MOVE_HOME,
            Self::HomeLeaves { .. } => kind::HOME_LEAVES,
            Self::HomeAwaited { .. } => kind::HOME_AWAITED,
            Self::HomeRequest { .. } => kind::HOME_REQUEST,
            Self::HomeEntries { .. } => kind::HOME_ENTRIES,
            Self::HomeMoved { .. } => kind::HOME_MOVED,
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
            Self::MoveHome { .. }
            | Self::HomeLeaves { .. }
            | Self::HomeRequest { .. }
            | Self::HomeEntries { .. }
            | Self::HomeMoved { .. } => self.fill_home_head(head),
            Self::Ready { .. }
            | Self::Go { .. }
            | Self::Left { .. }
            | Self::Demoted { .. }
            | Self::HomeAwaited { .. } => {}
        }
    }

    /// The same of messages about the home of pages.
    fn fill_home_head(&self, head: &mut Head) {
        match self {
            Self::MoveHome { pages, to, placement, .. }
            | Self::HomeLeaves { pages, to, placement, .. } => {
                head.slice = to.0.into();
                head.count = (*pages).into();
                head.tag = placement.0.into();
            }
            Self::HomeRequest { requester, asked, .. } => {
                head.slice = requester.0.into();
                if let Asked::Get { want, table, late_run } = asked {
                    head.access = access_code(*want);
                    head.level = table_code(*table);
                    head.flags |= if *late_run { FLAG_LATE_RUN } else { 0 };
                }
            }
            Self::HomeEntries { entries, .. } => {
                let pages = u16::try_from(entries.len()).expect("at most HOME_MOVE_MAX entries");
                head.count = pages.into();
            }
            Self::HomeMoved { pages, .. } => head.count = (*pages).into(),
            _ => {}
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
        let remote_written = head.flags & FLAG_REMOTE_WRITTEN != 0;
        if remote_written && (tail != 0 || head.kind != kind::DATA) {
            return Err(DecodeError::Field { kind: head.kind, field: "remote_written" });
        }
        let page = match tail {
            0 if remote_written => PageBody::RemoteWritten,
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
        kind::MOVE_HOME..=kind::HOME_MOVED => return decode_home(head, rest),
        other => return Err(DecodeError::Kind(other)),
    })
}

/// Messages about the home of pages.
fn decode_home(head: &Head, rest: &[u8]) -> Result<Message, DecodeError> {
    let field = |field| DecodeError::Field { kind: head.kind, field };
    let (gfn, slice) = (Gfn(head.gfn.get()), SliceId(head.slice.get()));
    let placement = Epoch(head.tag.get());
    let pages = || {
        let pages = head.count.get();
        (1..=HOME_MOVE_MAX).contains(&pages).then_some(pages).ok_or_else(|| field("pages"))
    };
    Ok(match head.kind {
        kind::MOVE_HOME => Message::MoveHome { gfn, pages: pages()?, to: slice, placement },
        kind::HOME_LEAVES => Message::HomeLeaves { gfn, pages: pages()?, to: slice, placement },
        kind::HOME_AWAITED => Message::HomeAwaited { gfn },
        kind::HOME_REQUEST => {
            let late_run = head.flags & FLAG_LATE_RUN != 0;
            let table = decode_table(head.level).ok_or_else(|| field("level"))?;
            let asked = match decode_access(head.access).ok_or_else(|| field("access"))? {
                Access::None if late_run || table.is_some() => return Err(field("access")),
                Access::None => Asked::Demote,
                want => Asked::Get { want, table, late_run },
            };
            Message::HomeRequest { gfn, requester: slice, asked }
        }
        kind::HOME_ENTRIES => {
            let need = usize::from(pages()?) * DIRECTORY_ENTRY_BYTES;
            if rest.len() != need {
                let have = HEAD_BYTES + rest.len();
                return Err(DecodeError::Length { have, need: HEAD_BYTES + need });
            }
            let entries = rest.chunks_exact(DIRECTORY_ENTRY_BYTES).map(DirectoryEntry::decode);
            Message::HomeEntries { gfn, entries: entries.collect::<Result<_, _>>().map_err(field)? }
        }
        kind::HOME_MOVED => Message::HomeMoved { gfn, pages: pages()? },
        other => return Err(DecodeError::Kind(other)),
    })
}

fn entry_bytes(head: &Head) -> usize {
    match head.kind {
        kind::DIFF | kind::LEFT => usize::from(head.count.get()) * size_of::<WireEntry>(),
        kind::HOME_ENTRIES => usize::from(head.count.get()) * DIRECTORY_ENTRY_BYTES,
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

pub(super) fn access_code(access: Access) -> u8 {
    match access {
        Access::None => 0,
        Access::Read => 1,
        Access::Write => 2,
    }
}

pub(super) fn decode_access(code: u8) -> Option<Access> {
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
