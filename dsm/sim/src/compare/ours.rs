//! This protocol: the nodes of the engine with its predictors, each message delivered at once.
//!
//! A page without contents cannot tell by its hash whether it was written; here the access itself tells.

use super::algorithm::{Algorithm, Cost, Touch};
use dsm_protocol::prediction::{Miss, Predictor, Runs, Touch as PageTouch, WritePrediction};
use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Mechanisms, Message, NoPages,
    Node, SliceId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a slice remembers beside its node, as the engine does.
#[derive(Debug)]
struct Memory {
    write_prediction: WritePrediction,
    runs: Runs,
    /// First pages of windows on their way; their first touch asks for the next window.
    markers: BTreeSet<Gfn>,
    /// Pages that it has had: what it misses again proves no stride, see `Engine::prefetch`.
    had: BTreeSet<Gfn>,
    /// Pages that came for writing on a read, and whether they were written since.
    predicted: BTreeMap<Gfn, bool>,
}

impl Memory {
    fn new(mechanisms: Mechanisms) -> Self {
        let (write_prediction, markers, had, predicted) = Default::default();
        Self { write_prediction, runs: Runs::new(mechanisms), markers, had, predicted }
    }
}

/// A node for each slice, homes in equal parts.
#[derive(Debug)]
pub struct Ours {
    nodes: Vec<Node>,
    memories: Vec<Memory>,
    cost: Cost,
}

impl Ours {
    /// Every page at its home.
    ///
    /// # Panics
    /// No slice, or fewer pages than slices.
    #[must_use]
    pub fn new(slices: u16, pages: u64, mechanisms: Mechanisms) -> Self {
        let share = pages / u64::from(slices);
        let ranges = (0..slices).map(|slice| {
            let start = u64::from(slice) * share;
            let end = if slice + 1 == slices { pages } else { start + share };
            HomeRange { frames: start..end, home: SliceId(slice) }
        });
        let homes = HomeTable::new(ranges.collect()).expect("ranges follow one another");
        let all: Vec<SliceId> = (0..slices).map(SliceId).collect();
        let node = |slice| {
            let config = Config::new(slice, all.clone(), homes.clone(), Epoch(1));
            Node::new(Config { mechanisms, ..config })
        };
        Self {
            nodes: all.iter().map(|slice| node(*slice)).collect(),
            memories: all.iter().map(|_| Memory::new(mechanisms)).collect(),
            cost: Cost::default(),
        }
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
        node.step(0, input, &mut NoPages, &mut effects).expect("nodes understand one another");
        for effect in effects {
            if let Effect::Send { to, message } = effect {
                self.cost.messages += 1;
                self.cost.copies += u64::from(message.has_body());
                queue.push_back((slice, to, message));
            }
        }
    }
}

impl Ours {
    /// Steps a node until all that follows from it has arrived.
    fn settle(&mut self, slice: SliceId, input: Input) {
        let mut queue = VecDeque::new();
        self.step(slice, input, &mut queue);
        while let Some((from, to, message)) = queue.pop_front() {
            self.step(to, Input::Message { from, epoch: Epoch(1), message }, &mut queue);
        }
    }

    /// The access to ask for: see `Engine::predicted`.
    fn predicted(memory: &mut Memory, gfn: Gfn, want: Access, held: Access) -> Access {
        if let Some(written) = memory.predicted.remove(&gfn) {
            // It went since.
            memory.write_prediction.goes(gfn, || u64::from(written));
        }
        let ask = memory.write_prediction.fault(gfn, held, want);
        if ask > want {
            memory.write_prediction.came(gfn, || 0);
            memory.predicted.insert(gfn, false);
        }
        ask
    }
}

impl Algorithm for Ours {
    fn touch(&mut self, touch: Touch) {
        let at = usize::from(touch.slice);
        let (slice, gfn) = (SliceId(touch.slice), Gfn(touch.page));
        let want = if touch.write { Access::Write } else { Access::Read };
        let held = self.nodes[at].access(gfn);
        let memory = &mut self.memories[at];
        let (missed, marker) = (held < want, memory.markers.remove(&gfn));
        let again = missed && !memory.had.insert(gfn);
        let mechanisms = self.nodes[at].mechanisms();
        if missed {
            let ask = match mechanisms.write_prediction {
                true => Self::predicted(memory, gfn, want, held),
                false => want,
            };
            self.cost.faults += 1;
            self.settle(slice, Input::Fault { gfn, want: ask });
        }
        let memory = &mut self.memories[at];
        if let Some(written) = memory.predicted.get_mut(&gfn) {
            *written |= touch.write;
        }
        if (!missed && !marker) || !mechanisms.runs {
            return;
        }
        let miss = Miss { gfn, want };
        let touch = PageTouch { miss, missed, had: again, now_ns: 0, together_ns: 0 };
        for window in memory.runs.touched(touch, &|_| true) {
            for (gfn, pages) in window.requests() {
                self.settle(slice, Input::Prefetch { gfn, pages, want: window.want });
            }
            let (memory, asked) = (&mut self.memories[at], window.frames());
            memory.had.extend(window.frames());
            memory.markers.extend(asked.filter(|gfn| window.is_marker(*gfn)));
        }
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}
