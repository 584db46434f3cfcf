//! Flush before release: changes of replicated tables reach every slice before anything through
//! which a slice could learn of them.
//!
//! ```text
//!   release --compare replicas with twins--> no difference, nothing outstanding: send now
//!                                        \-> Diff to all, queue the release
//!   DiffDone from all, demotions over ----> send queued releases in order
//! ```
//!
//! A release is a page, an acknowledgement of an invalidation, an interrupt or a device call. The
//! comparison happens after the page that is sent was unmapped or protected, so every table write
//! before the last write to that page is found.
//!
//! Leaving the class is part of the flush: a page whose last parent entry went away is demoted, and
//! the release waits until every slice has dropped it, for it may be data from now on.

use crate::effect::Effect;
use crate::error::ProtocolError;
use crate::node::Node;
use crate::pages::PageCopy;
use crate::planted::PlantedBug;
use crate::releases::{Outgoing, Outstanding, Releases};
use crate::store::{Merge, PageStore};
use crate::tables::fits_root;
use wire::coherence::ENTRIES_MAX;
use wire::{Access, Entry, Gfn, Held, Level, Message, SliceId};

impl Node {
    /// Takes a release. It goes at the end of the step at the earliest.
    pub(crate) fn release(&mut self, outgoing: Outgoing) {
        self.releases.new.push(outgoing);
    }

    /// Flushes for the releases of this step, all at once, and sends what may go. False when there
    /// were none.
    pub(crate) fn send_releases(&mut self, store: &mut impl PageStore) -> bool {
        if self.releases.new.is_empty() {
            return false;
        }
        if !self.tables.is_empty() && !self.planted(PlantedBug::ReleaseWithoutFlush) {
            self.flush(store);
        }
        let barrier = self.releases.newest;
        let Releases { new, queue, .. } = &mut self.releases;
        queue.extend(new.drain(..).map(|outgoing| (barrier, outgoing)));
        self.send_released();
        true
    }

    /// Sends queued releases whose flushes are over, in order.
    fn send_released(&mut self) {
        if !self.releases.diffs_outstanding() {
            for (to, message) in std::mem::take(&mut self.releases.lefts) {
                self.post(to, message);
            }
        }
        let oldest = self.releases.outstanding.keys().next().copied();
        while let Some((barrier, _)) = self.releases.queue.front() {
            let waits = oldest.is_some_and(|oldest| oldest <= *barrier);
            if waits && !self.planted(PlantedBug::FlushNotAcknowledged) {
                return;
            }
            match self.releases.queue.pop_front() {
                Some((_, Outgoing::Message(to, message))) => self.post(to, message),
                Some((_, Outgoing::External(token))) => self.effect(Effect::Released { token }),
                None => return,
            }
        }
    }

    /// Compares all replicas with their twins, parents first, and sends what differs.
    fn flush(&mut self, store: &mut impl PageStore) {
        self.stats.replicas.flushes += 1;
        let mut entries = Vec::new();
        let mut leaving = Vec::new();
        let mut level = Some(Level::ROOT);
        while let Some(at) = level {
            for gfn in self.tables.at_level(at) {
                let is_stale = !self.tables.is_referenced(gfn, at);
                if is_stale && !self.planted(PlantedBug::StaleMemberKept) {
                    self.tables.remove(gfn, store);
                    leaving.push(gfn);
                } else if !self.compare(gfn, at, &mut entries, store) {
                    leaving.push(gfn);
                }
            }
            level = at.below();
        }
        for chunk in entries.chunks(ENTRIES_MAX) {
            let flush = self.releases.begin(Outstanding::Diff(self.others_count()));
            self.stats.replicas.diffs += 1;
            self.stats.replicas.entries_out += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            self.post_to_others(&Message::Diff { flush, entries: chunk.to_vec() });
        }
        for gfn in leaving {
            self.ask_demotion(gfn, false);
        }
    }

    /// Appends the changes of one replica. False when the page is no table any more.
    fn compare(
        &mut self,
        gfn: Gfn,
        level: Level,
        entries: &mut Vec<Entry>,
        store: &mut impl PageStore,
    ) -> bool {
        let start = entries.len();
        let clean = store.changes(gfn, entries);
        for entry in &entries[start..] {
            self.tables.changed(entry, entry.old);
        }
        let end = self.config.homes.end();
        let mut fits = level != Level::ROOT || entries[start..].iter().all(|e| fits_root(e, end));
        if clean && self.make_dirty(gfn, level, store) {
            entries[start..].iter_mut().for_each(|entry| self.tables.set_dirty(entry));
        } else if clean {
            // Freed while this flush goes on, as the next one tells. The changes may be data.
            fits = false;
        }
        if !fits {
            // The twin has them already, so they must not get lost should another slice be heir.
            let unsent = self.releases.unsent.entry(gfn).or_default();
            unsent.extend(entries.drain(start..));
            self.tables.remove(gfn, store);
        }
        fits
    }

    /// Sets missing dirty bits of a process's table. False when it is no table any more.
    ///
    /// The guest runs meanwhile: it may free the page and use it as data, which must not be changed.
    /// So the page is protected first. Kernels take a page out of its parent before they free it, so
    /// if a parent still points to it now, nobody stores data there before it is mapped again.
    fn make_dirty(&mut self, gfn: Gfn, level: Level, store: &mut impl PageStore) -> bool {
        if self.pages.copy(gfn) != PageCopy::Replica {
            // Not mapped: no processor walks through it here. What is sent gets its bits anyway.
            return true;
        }
        store.protect(gfn);
        store.settle();
        let parents = self.tables.above(level);
        let linked = parents.into_iter().any(|parent| store.points_to(parent, gfn));
        if linked {
            store.set_dirty(gfn);
        }
        store.map(gfn, Access::Write);
        linked
    }

    /// Asks for the end of a replica. Releases from now on wait for it.
    pub(crate) fn ask_demotion(&mut self, gfn: Gfn, conflict: bool) {
        if self.releases.demotions.contains_key(&gfn) {
            return;
        }
        let number = self.releases.begin(Outstanding::Demotion);
        self.releases.demotions.insert(gfn, number);
        self.post_to_home(gfn, Message::Demote { gfn, conflict });
    }

    /// An offered replica that nobody used was dropped: what waits for its end may go on.
    pub(crate) fn offer_over(&mut self, gfn: Gfn) {
        self.releases.unsent.remove(&gfn);
        self.releases.demotion_over(gfn);
        self.send_released();
    }

    pub(crate) fn diff(
        &mut self,
        from: SliceId,
        flush: u64,
        entries: &[Entry],
        store: &mut impl PageStore,
    ) {
        for entry in entries {
            let gfn = entry.gfn;
            if !matches!(self.pages.copy(gfn), PageCopy::Replica | PageCopy::Forming) {
                // Dropped here since; the heir has the entry.
                continue;
            }
            self.stats.replicas.entries_in += 1;
            if self.planted(PlantedBug::MergeLosesEntry) {
                store.changes(gfn, &mut Vec::new());
            }
            let old = store.twin_entry(gfn, entry.index);
            let merged = store.merge(entry);
            self.tables.changed(entry, old);
            if merged == Merge::Conflict {
                self.stats.replicas.conflicts += 1;
                self.ask_demotion(gfn, true);
            }
        }
        self.post(from, Message::DiffDone { flush });
    }

    pub(crate) fn diff_done(&mut self, from: SliceId, flush: u64) -> Result<(), ProtocolError> {
        let error = self.error(from, "DiffDone", Gfn::default(), "no such flush is outstanding");
        match self.releases.outstanding.get_mut(&flush) {
            Some(Outstanding::Diff(left)) if *left > 1 => *left -= 1,
            Some(Outstanding::Diff(_)) => {
                self.releases.outstanding.remove(&flush);
                self.send_released();
            }
            _ => return Err(error),
        }
        Ok(())
    }

    /// Gives a replica up in favour of `heir`. Changes go to everyone first, for a later release of
    /// this slice may reach members that have not left yet. What `Left` carries are changes after
    /// this slice itself asked for the demotion: its releases wait for that anyway.
    pub(crate) fn leave(
        &mut self,
        gfn: Gfn,
        heir: SliceId,
        dropped: bool,
        store: &mut impl PageStore,
    ) {
        store.unmap(gfn);
        store.settle();
        self.pages.set_copy(gfn, PageCopy::Invalid);
        if self.tables.is_replica(gfn) {
            self.flush(store);
        }
        self.tables.remove(gfn, store);
        let mut entries = self.releases.unsent.remove(&gfn).unwrap_or_default();
        store.changes(gfn, &mut entries);
        store.forget(gfn);
        self.resume_overtaken(gfn, dropped);
        // From here on this slice no longer sees in a flush that the page was taken out of its
        // parent. So its releases wait until all have left, whoever asked for it.
        let asked = self.releases.demotions.remove(&gfn);
        let number = asked.unwrap_or_else(|| self.releases.begin(Outstanding::Demotion));
        self.releases.leaving.insert(gfn, number);
        self.releases.lefts.push((heir, Message::Left { gfn, entries }));
        self.send_released();
    }

    pub(crate) fn left(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        entries: &[Entry],
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let error = self.error(from, "Left", gfn, "this slice is not the heir");
        // The heir may not have seen the converter's Go when a faster slice has left already.
        if !matches!(self.pages.copy(gfn), PageCopy::Replica | PageCopy::Forming)
            || entries.iter().any(|e| e.gfn != gfn)
        {
            return Err(error);
        }
        let left = self.releases.left.entry(gfn).or_default();
        *left += 1;
        let over = *left == self.others_count();
        // No table any more: its references must not follow what is merged now. So its changes are
        // not flushed either, and releases wait for its end, even if this slice asked for the end
        // of an earlier replica of this page.
        if !self.releases.demotions.contains_key(&gfn) {
            let number = self.releases.begin(Outstanding::Demotion);
            self.releases.demotions.insert(gfn, number);
        }
        self.tables.remove(gfn, store);
        for entry in entries {
            // Where both changed an entry the heir's value stays: the home chose the heir.
            store.merge(entry);
        }
        if over {
            self.releases.left.remove(&gfn);
            self.releases.unsent.remove(&gfn);
            self.releases.demotion_over(gfn);
            store.forget(gfn);
            self.pages.set_copy(gfn, PageCopy::Exclusive);
            let asked = self.drop_overtaken(gfn);
            self.stats.replicas.demotions += 1;
            self.post_to_home(gfn, Message::Confirm { gfn, held: Held::Exclusive, asked });
            self.send_released();
        }
        Ok(())
    }

    /// Everyone has left a page that this slice has left too. The home tells all, and not only those
    /// who asked: a `Demote` that is still on its way then may reach the home when the page is being
    /// converted again, and must not be waited for (the conversion may wait for this slice).
    pub(crate) fn demoted(&mut self, from: SliceId, gfn: Gfn) -> Result<(), ProtocolError> {
        if from != self.home_of(gfn) {
            return Err(self.error(from, "Demoted", gfn, "only the home says so"));
        }
        if let Some(number) = self.releases.leaving.remove(&gfn) {
            self.releases.outstanding.remove(&number);
            self.send_released();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::homes::{HomeRange, HomeTable};
    use crate::{Input, NoPages};
    use wire::{Epoch, Table};

    #[test]
    fn releases_of_one_step_leave_in_order_after_one_flush() {
        let homes = HomeTable::new(vec![HomeRange { frames: 0..4, home: SliceId(0) }]).unwrap();
        let slices = vec![SliceId(0), SliceId(1)];
        let mut node = Node::new(Config::new(SliceId(0), slices, homes, Epoch(1)));
        node.tables.insert(Gfn(0), Table::ROOT, &NoPages);
        let mut effects = Vec::new();
        node.step(0, Input::Release { tokens: 7..10 }, &mut NoPages, &mut effects).unwrap();
        let tokens = effects.iter().map(|effect| match effect {
            Effect::Released { token } => Some(*token),
            _ => None,
        });
        assert!(tokens.eq([7, 8, 9].map(Some)), "{effects:?}");
        assert_eq!(node.stats().replicas.flushes, 1);
    }
}
