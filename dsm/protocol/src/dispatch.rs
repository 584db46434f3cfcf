//! Messages, checked and given to the part of the node that they are for: home, holder, requester or replicas.

use crate::error::ProtocolError;
use crate::node::Node;
use crate::recalls::Deferred;
use crate::store::PageStore;
use wire::{Entry, Message, SliceId};

impl Node {
    /// Takes a message in.
    pub(crate) fn receive(
        &mut self,
        from: SliceId,
        message: Message,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        self.check(from, &message)?;
        match message {
            Message::Get { gfn, want, table } => self.home_get(from, gfn, want, table, store),
            Message::GetRun { gfn, pages, want } => {
                self.home_get_run(from, gfn, pages, want, store)
            }
            Message::Confirm { gfn, held, asked } => self.home_confirm(from, gfn, held, asked),
            Message::Fetch { gfn, requester, keep, acks, owner, table } => self.recalled(
                from,
                Deferred::fetch(gfn, requester, keep, acks, owner, table),
                store,
            ),
            Message::Invalidate { gfn, requester, upgrade } => {
                self.recalled(from, Deferred::invalidate(gfn, requester, upgrade), store)
            }
            Message::Grant { gfn, acks, table } => self.granted(from, gfn, acks, table, store),
            Message::Data { gfn, access, acks, held_us, table } => {
                self.note_held(gfn, held_us);
                self.data(from, gfn, access, acks, table, store)
            }
            Message::Acked { gfn, upgrade, held_us } => {
                self.note_held(gfn, held_us);
                self.acked(from, gfn, upgrade, store)
            }
            Message::Offer { gfn, table } => self.offered(from, gfn, table, store),
            Message::Ready { gfn } => self.ready(from, gfn, store),
            Message::Go { gfn } => self.go(from, gfn, store),
            Message::Diff { flush, entries } => {
                self.diff(from, flush, &entries, store);
                Ok(())
            }
            Message::DiffDone { flush } => self.diff_done(from, flush),
            Message::Demote { gfn, conflict } => self.home_demote(from, gfn, conflict),
            Message::Leave { gfn, heir, dropped } => {
                self.recalled(from, Deferred::leave(gfn, heir, dropped), store)
            }
            Message::Left { gfn, entries } => self.left(from, gfn, &entries, store),
            Message::Demoted { gfn } => self.demoted(from, gfn),
            Message::Root { vcpu, gfn } => {
                self.tables.set_root(vcpu, gfn);
                Ok(())
            }
            message => self.receive_home(from, message, store),
        }
    }

    /// Messages about the home of pages.
    fn receive_home(
        &mut self,
        from: SliceId,
        message: Message,
        store: &impl PageStore,
    ) -> Result<(), ProtocolError> {
        match message {
            Message::MoveHome { gfn, pages, to, placement } => {
                self.move_home(from, gfn, pages, to, placement)
            }
            Message::HomeLeaves { gfn, pages, to, placement } => {
                self.home_leaves(from, gfn, pages, to, placement)
            }
            Message::HomeAwaited { gfn } => self.home_awaited(from, gfn),
            Message::HomeRequest { gfn, requester, asked } => {
                self.home_request(from, gfn, requester, asked, store)
            }
            Message::HomeEntries { gfn, entries } => self.home_entries(from, gfn, &entries, store),
            Message::HomeMoved { gfn, pages } => self.home_moved(from, gfn, pages),
            _ => Ok(()),
        }
    }

    /// Frames, slices and vCPUs that a peer may name at all. Everything behind this relies on it.
    fn check(&self, from: SliceId, message: &Message) -> Result<(), ProtocolError> {
        let gfn = message.gfn().unwrap_or_default();
        let no = |state| Err(self.error(from, "a message", gfn, state));
        let is_member = |slice: &SliceId| self.config.slices.binary_search(slice).is_ok();
        if message.gfn().is_some() && self.home(gfn).is_none() {
            return no("no memory there");
        }
        let (named, entries): (_, &[Entry]) = match message {
            Message::Fetch { requester, .. }
            | Message::Invalidate { requester, .. }
            | Message::HomeRequest { requester, .. } => (*requester, &[]),
            Message::MoveHome { to, .. } | Message::HomeLeaves { to, .. } => (*to, &[]),
            Message::Leave { heir, .. } => (*heir, &[]),
            Message::Diff { entries, .. } | Message::Left { entries, .. } => (from, entries),
            Message::Root { vcpu, .. } if vcpu.0 >= self.config.vcpus => {
                return no("the VM has no such vCPU");
            }
            _ => (from, &[]),
        };
        if !is_member(&from) || !is_member(&named) {
            return no("a slice that has no share in memory");
        }
        if entries.iter().any(|entry| self.home(entry.gfn).is_none()) {
            return no("an entry of a page without memory");
        }
        Ok(())
    }
}
