//! Slices joined by a courier in memory, which delivers frames of different peers in any order.

mod disk;
mod hostile;
mod idle;
mod nic;

use super::{Courier, Exchange, ExchangeError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use wire::{Epoch, SliceId};

const EPOCH: Epoch = Epoch(3);
/// Far beyond what any test needs; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(30);

type Ways = BTreeMap<(SliceId, SliceId), VecDeque<Vec<u8>>>;

/// Frames between slices, in order on each way.
#[derive(Debug, Default)]
struct Post {
    ways: Mutex<Ways>,
    gone: Mutex<BTreeSet<SliceId>>,
}

#[derive(Debug)]
struct Sender {
    from: SliceId,
    post: Arc<Post>,
}

impl Courier for Sender {
    fn send(&self, to: SliceId, frame: Vec<u8>) -> bool {
        assert!(frame.len() <= wire::device::FRAME_BYTES_MAX);
        let gone = self.post.gone.lock().unwrap();
        if gone.contains(&to) || gone.contains(&self.from) {
            return false;
        }
        self.post.ways.lock().unwrap().entry((self.from, to)).or_default().push_back(frame);
        true
    }
}

/// Three slices; the first has the devices.
struct World {
    post: Arc<Post>,
    slices: Vec<Arc<Exchange>>,
    dice: u64,
}

const OWNER: SliceId = SliceId(0);

impl World {
    fn new(dice: u64) -> Self {
        let post = Arc::new(Post::default());
        let ids = [SliceId(0), SliceId(1), SliceId(2)];
        let slices = ids.map(|local| {
            let others: Vec<_> = ids.into_iter().filter(|id| *id != local).collect();
            let courier = Arc::new(Sender { from: local, post: Arc::clone(&post) });
            Arc::new(Exchange::new(local, &others, EPOCH, courier))
        });
        Self { post, slices: slices.to_vec(), dice: dice | 1 }
    }

    fn slice(&self, id: SliceId) -> &Exchange {
        &self.slices[usize::from(id.0)]
    }

    /// A number below `bound`.
    fn roll(&mut self, bound: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.dice >> 33).unwrap() % bound
    }

    /// Delivers the oldest frame of some way. False when there is none.
    fn deliver(&mut self) -> Result<bool, ExchangeError> {
        let ready: Vec<_> = {
            let ways = self.post.ways.lock().unwrap();
            ways.iter().filter(|way| !way.1.is_empty()).map(|way| *way.0).collect()
        };
        if ready.is_empty() {
            return Ok(false);
        }
        let way = ready[self.roll(ready.len())];
        let frame = self.post.ways.lock().unwrap().get_mut(&way).and_then(VecDeque::pop_front);
        let frame = frame.expect("nobody else takes frames");
        self.slice(way.1).frame(way.0, &frame)?;
        Ok(true)
    }

    /// Delivers until `done`.
    fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            if !self.deliver().expect("honest slices") {
                assert!(start.elapsed() < PATIENCE, "nothing moves any more");
                thread::yield_now();
            }
        }
    }

    /// The slice with the devices dies: what is on its way from and to it is lost.
    fn lose_owner(&self) {
        self.post.gone.lock().unwrap().insert(OWNER);
        let mut ways = self.post.ways.lock().unwrap();
        ways.retain(|way, _| way.0 != OWNER && way.1 != OWNER);
        drop(ways);
        for slice in &self.slices[1..] {
            slice.lost(OWNER);
        }
    }
}
