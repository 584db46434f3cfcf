//! The directory of a home with many pages: who holds a page (lookup), and who holds it now (update).
//!
//! What is asked is a node, as the engine asks it; frames come in an order that no cache and no
//! prefetcher likes. A million pages are 4 GiB of guest memory.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dsm_protocol::NoPages;
use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, Held, HomeRange, HomeTable, Input, Message, Node, SliceId,
};
use std::env::args;
use std::hint::black_box;
use std::time::Duration;

const SIZES: [(&str, u64); 2] = [("1M", 1 << 20), ("16M", 1 << 24)];

/// A home of all pages but one, and frames in scattered order.
struct Home {
    node: Node,
    effects: Vec<Effect>,
    pages: u64,
    at: u64,
}

impl Home {
    fn new(pages: u64) -> Self {
        let homes = vec![
            HomeRange { frames: 0..pages, home: SliceId(0) },
            HomeRange { frames: pages..pages + 1, home: SliceId(1) },
        ];
        let homes = HomeTable::new(homes).expect("two ranges");
        let slices = (0..4).map(SliceId).collect();
        let node = Node::new(Config::new(SliceId(0), slices, homes, Epoch(1)));
        Self { node, effects: Vec::new(), pages, at: 0 }
    }

    /// The same with every page gone to slice 3: the home only keeps the books.
    fn with_books(pages: u64) -> Self {
        let mut home = Self::new(pages);
        for frame in 0..pages {
            home.take(3, Gfn(frame));
        }
        home
    }

    /// All frames come once before one comes again: the step is odd, the number a power of two.
    fn next(&mut self) -> Gfn {
        self.at = self.at.wrapping_add(0x9e37_79b9_7f4a_7c15) & (self.pages - 1);
        Gfn(self.at)
    }

    fn hear(&mut self, from: u16, message: Message) {
        let input = Input::Message { from: SliceId(from), epoch: Epoch(1), message };
        self.effects.clear();
        let step = self.node.step(0, input, &mut NoPages, &mut self.effects);
        step.expect("the protocol holds");
    }

    /// A slice takes a page to write: two steps, a lookup and an update.
    fn take(&mut self, from: u16, gfn: Gfn) {
        self.hear(from, Message::Get { gfn, want: Access::Write, table: None });
        self.hear(from, Message::Confirm { gfn, held: Held::Exclusive, asked: false });
    }
}

fn directory(criterion: &mut Criterion) {
    let asked = |what: &str| args().any(|argument| argument == what);
    let measuring = asked("--bench") && !asked("--list");
    let mut group = criterion.benchmark_group("directory");
    for (name, pages) in SIZES {
        // The books of 16M pages take seconds to fill: only where something is measured.
        let mut home = Home::with_books(if measuring { pages } else { 1 << 10 });
        group.bench_function(BenchmarkId::new("home and access", name), |bencher| {
            bencher.iter(|| {
                let gfn = home.next();
                black_box((home.node.home(gfn), home.node.access(gfn)))
            });
        });
        // A page goes from slice to slice: the home looks who has it, and notes who has it now.
        group.bench_function(BenchmarkId::new("request and confirmation", name), |bencher| {
            let mut taker = 1;
            bencher.iter(|| {
                let gfn = home.next();
                // One round through all frames, then the next slice.
                taker = if home.at == 0 { taker % 3 + 1 } else { taker };
                home.take(black_box(taker), black_box(gfn));
            });
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = short(); targets = directory }
criterion_main!(benches);
