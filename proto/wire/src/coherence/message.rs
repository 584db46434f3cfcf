//! The messages.

use super::types::{Access, Asked, DirectoryEntry, Entry, Held, Table};
use crate::{Epoch, Gfn, SliceId, VcpuId};

/// What follows the head of [`Message::Data`] and [`Message::Offer`] on the wire. The protocol does
/// not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageBody<'a> {
    /// The page is all zeros; no bytes travel.
    Zero,
    /// The 4096 bytes.
    Bytes(&'a [u8]),
    /// The sender wrote the page where the receiver keeps it before it sent the message (RDMA); only
    /// [`Message::Data`] says so. A receiver that has not exposed its memory to the sender must refuse this.
    RemoteWritten,
}

/// A message between two slices about one page, about replicated page tables, or about the home of pages.
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
        /// How many, 1 to [`RUN_MAX`](super::RUN_MAX).
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
        /// The entries, parents before children. At most [`ENTRIES_MAX`](super::ENTRIES_MAX).
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
    /// Coordinator to home: give these pages another home.
    MoveHome {
        /// The first page.
        gfn: Gfn,
        /// How many, 1 to [`HOME_MOVE_MAX`](super::HOME_MOVE_MAX), of one chunk.
        pages: u16,
        /// Their next home.
        to: SliceId,
        /// The epoch of the placement that says so. It is not that of the frame.
        placement: Epoch,
    },
    /// Home to everyone: ask nothing more about these pages until their next home says that it is.
    HomeLeaves {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
        /// Their next home.
        to: SliceId,
        /// The epoch of the placement that says so.
        placement: Epoch,
    },
    /// Answer to that: nothing more is asked. What was asked before came before this.
    HomeAwaited {
        /// The first page.
        gfn: Gfn,
    },
    /// Former home to the next: a slice had asked the former one.
    HomeRequest {
        /// The page.
        gfn: Gfn,
        /// Who had asked.
        requester: SliceId,
        /// For what.
        asked: Asked,
    },
    /// Former home to the next: this is all that is known of these pages.
    HomeEntries {
        /// The first page.
        gfn: Gfn,
        /// One for each page.
        entries: Vec<DirectoryEntry>,
    },
    /// Home to everyone: it is the home of these pages from now on.
    HomeMoved {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
    },
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
            | Self::Root { gfn, .. }
            | Self::MoveHome { gfn, .. }
            | Self::HomeLeaves { gfn, .. }
            | Self::HomeAwaited { gfn }
            | Self::HomeRequest { gfn, .. }
            | Self::HomeEntries { gfn, .. }
            | Self::HomeMoved { gfn, .. } => Some(gfn),
            Self::Diff { .. } | Self::DiffDone { .. } => None,
        }
    }
}
