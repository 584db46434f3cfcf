//! This protocol: the nodes of the engine, each message delivered at once.

use super::{Algorithm, Cost, Touch};
use dsm_protocol::{
    Access, Config, Effect, Entry, Epoch, Gfn, HomeRange, HomeTable, Input, Merge, Message, Node,
    PageStore, SliceId, Table,
};
use std::collections::VecDeque;

/// Pages without contents.
#[derive(Debug)]
struct Nothing;

impl PageStore for Nothing {
    fn fill(&mut self, _: Gfn) {}
    fn map(&mut self, _: Gfn, _: Access) {}
    fn protect(&mut self, _: Gfn) {}
    fn unmap(&mut self, _: Gfn) {}
    fn snapshot(&mut self, _: Gfn, _: Table) {}
    fn set_dirty(&mut self, _: Gfn) {}
    fn points_to(&self, _: Gfn, _: Gfn) -> bool {
        false
    }
    fn changes(&mut self, _: Gfn, _: &mut Vec<Entry>) -> bool {
        false
    }
    fn merge(&mut self, _: &Entry) -> Merge {
        Merge::Applied
    }
    fn forget(&mut self, _: Gfn) {}
    fn twin_entry(&self, _: Gfn, _: u16) -> u64 {
        0
    }
    fn twin_entries(&self, _: Gfn, _: &mut dyn FnMut(u16, u64)) {}
}

/// A node for each slice, homes in equal parts.
#[derive(Debug)]
pub struct Ours {
    nodes: Vec<Node>,
    cost: Cost,
}

impl Ours {
    /// Every page at its home.
    ///
    /// # Panics
    /// No slice, or fewer pages than slices.
    #[must_use]
    pub fn new(slices: u16, pages: u64) -> Self {
        let share = pages / u64::from(slices);
        let ranges = (0..slices).map(|slice| {
            let start = u64::from(slice) * share;
            let end = if slice + 1 == slices { pages } else { start + share };
            HomeRange { frames: start..end, home: SliceId(slice) }
        });
        let homes = HomeTable::new(ranges.collect()).expect("ranges follow one another");
        let all: Vec<SliceId> = (0..slices).map(SliceId).collect();
        let node = |slice| Node::new(Config::new(slice, all.clone(), homes.clone(), Epoch(1)));
        Self { nodes: all.iter().map(|slice| node(*slice)).collect(), cost: Cost::default() }
    }

    /// Steps a node and puts what it sends into the queue.
    fn step(
        &mut self,
        slice: SliceId,
        input: Input,
        queue: &mut VecDeque<(SliceId, SliceId, Message)>,
    ) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[usize::from(slice.0)];
        node.step(0, input, &mut Nothing, &mut effects).expect("nodes understand one another");
        for effect in effects {
            if let Effect::Send { to, message } = effect {
                self.cost.messages += 1;
                self.cost.copies += u64::from(message.has_body());
                queue.push_back((slice, to, message));
            }
        }
    }
}

impl Algorithm for Ours {
    fn touch(&mut self, touch: Touch) {
        let (slice, gfn) = (SliceId(touch.slice), Gfn(touch.page));
        let want = if touch.write { Access::Write } else { Access::Read };
        let before = self.nodes[usize::from(touch.slice)].stats();
        let mut queue = VecDeque::new();
        self.step(slice, Input::Fault { gfn, want }, &mut queue);
        while let Some((from, to, message)) = queue.pop_front() {
            self.step(to, Input::Message { from, epoch: Epoch(1), message }, &mut queue);
        }
        let after = self.nodes[usize::from(touch.slice)].stats();
        self.cost.faults += u64::from(after.faults_local == before.faults_local);
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}
