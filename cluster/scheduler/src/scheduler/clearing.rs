//! Room for one that waits: what others move for it.
//!
//! ```text
//!            the policy names moves            the last of them is done, and two minutes have passed
//!   waits ───────────────────────────> room is made ───────────────────────────────────────────────> waits
//!                                          │ it starts, or is gone
//!                                          └─────────────────────────> nothing
//! ```
//! While room is made on a host, no slice comes there, neither to be with others nor from a host that is drained, and nobody moves aside
//! to it or from it for another one. Whoever has its turn first starts there.

use super::{Effect, Scheduler};
use crate::cluster::Move;
use crate::ids::{HostId, VmId};
use crate::policy::{Policy, RoomFor};

/// VMs of the queue for which room is made at a time.
const CLEARED_MAX: usize = 4;
/// It is tried again for one that waits still, after so many milliseconds.
const AGAIN: u64 = 120_000;

/// Room that is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Clearing {
    /// Since when.
    since: u64,
    /// Where.
    host: HostId,
    /// Who moves.
    moved: Vec<VmId>,
}

impl<P: Policy> Scheduler<P> {
    /// Those that have waited longest, if nothing moves for them yet.
    pub(super) fn clear(&mut self, effects: &mut Vec<Effect>) {
        if !self.policy.makes_room() {
            return;
        }
        self.end_clearings(effects);
        for at in 0..CLEARED_MAX {
            let Some(vm) = self.queue.get(at).map(|it| it.vm) else { return };
            if self.clearing.contains_key(&vm) {
                continue;
            }
            let moves = self.room_for(at);
            let Some(host) = moves.first().map(|step| step.from) else { continue };
            if self.begin(&moves, false, effects) {
                let moved = moves.iter().map(|step| step.vm).collect();
                self.clearing.insert(vm, Clearing { since: self.now, host, moved });
            }
        }
    }

    /// What was kept from coming together on such a host is looked at again.
    fn end_clearings(&mut self, effects: &mut Vec<Effect>) {
        let Self { clearing, cluster, queue, now, .. } = self;
        let is_over = |vm: &VmId, it: &mut Clearing| {
            let moves = |vm: &VmId| cluster.reservations_of(*vm).next().is_some();
            let is_made = it.since.saturating_add(AGAIN) > *now || it.moved.iter().any(moves);
            !queue.contains(*vm) || !is_made
        };
        let over: Vec<HostId> = clearing.extract_if(.., is_over).map(|(_, it)| it.host).collect();
        self.consolidate_beside(&over, effects);
    }

    /// Moves for the VM at this turn.
    fn room_for(&self, at: usize) -> Vec<Move> {
        let Some(it) = self.queue.get(at) else { return Vec::new() };
        let waited = self.now.saturating_sub(it.since);
        let blocks = at == 0 && !self.settings.discipline.may_pass(it.since, self.now);
        let allows = |moves: &[Move]| {
            let apart = |step: &Move| !self.is_cleared(step.from) && !self.is_cleared(step.to);
            let may_move = |step: &Move| self.policy.may_move(&self.cluster, step);
            moves.iter().all(|step| apart(step) && may_move(step)) && self.may_begin(moves, false)
        };
        let asks = RoomFor { spec: &it.spec, waited, blocks, allows: &allows };
        self.policy.make_room(&self.cluster, &asks)
    }

    /// Whether room is made there.
    pub(super) fn is_cleared(&self, host: HostId) -> bool {
        self.clearing.iter().any(|(vm, it)| it.host == host && self.queue.contains(*vm))
    }
}
