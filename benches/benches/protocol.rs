//! Steps of the protocol without any I/O: two slices hand one page back and forth, and one slice
//! reads pages of the other. What is measured is the protocol's own cost per fault.

use criterion::{Criterion, criterion_group, criterion_main};
use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Node, SliceId,
};
use dsm_sim::store::ArrayStore;
use std::collections::VecDeque;

const FRAMES: u64 = 1 << 16;

struct Pair {
    nodes: Vec<(Node, ArrayStore)>,
    now: u64,
}

impl Pair {
    fn new() -> Self {
        let half = |frames, home| HomeRange { frames, home: SliceId(home) };
        let homes = HomeTable::new(vec![half(0..FRAMES / 2, 0), half(FRAMES / 2..FRAMES, 1)])
            .expect("two halves");
        let slices = vec![SliceId(0), SliceId(1)];
        let node = |id| {
            let config = Config::new(SliceId(id), slices.clone(), homes.clone(), Epoch(1));
            (Node::new(config), ArrayStore::default())
        };
        Self { nodes: vec![node(0), node(1)], now: 0 }
    }

    /// Runs a fault of one slice to its end.
    fn fault(&mut self, at: usize, gfn: Gfn, want: Access) {
        let mut work = VecDeque::from([(at, Input::Fault { gfn, want })]);
        let mut effects = Vec::new();
        while let Some((at, input)) = work.pop_front() {
            self.now += 1000;
            let (node, store) = &mut self.nodes[at];
            node.step(self.now, input, store, &mut effects).expect("the protocol holds");
            for effect in effects.drain(..) {
                if let Effect::Send { to, message } = effect {
                    let from = SliceId(u16::try_from(at).expect("two slices"));
                    let input = Input::Message { from, epoch: Epoch(1), message };
                    work.push_back((usize::from(to.0), input));
                }
            }
        }
    }
}

fn protocol(criterion: &mut Criterion) {
    criterion.bench_function("write fault, page handed back and forth", |bencher| {
        let mut pair = Pair::new();
        let mut turn = 0;
        bencher.iter(|| {
            turn = 1 - turn;
            pair.fault(turn, Gfn(5), Access::Write);
        });
    });
    criterion.bench_function("read fault, a new page of the other slice each time", |bencher| {
        let mut pair = Pair::new();
        let mut frame = 0;
        bencher.iter(|| {
            if frame == FRAMES / 2 {
                pair = Pair::new();
                frame = 0;
            }
            pair.fault(1, Gfn(frame), Access::Read);
            frame += 1;
        });
    });
}

criterion_group!(benches, protocol);
criterion_main!(benches);
