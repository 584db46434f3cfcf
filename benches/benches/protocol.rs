//! Steps of the protocol without any I/O: what a fault costs beside messages and system calls.
//!
//! Every figure is one fault from its start to the last message that it causes, at all slices together.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dsm_protocol::NoPages;
use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Node, SliceId,
};
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

const FRAMES: u64 = 1 << 16;
/// A frame whose home is slice 0.
const PAGE: Gfn = Gfn(5);

/// Slices that share memory, of which the first is home of the first half, the last of the second.
struct Slices {
    nodes: Vec<Node>,
    work: VecDeque<(usize, Input)>,
    effects: Vec<Effect>,
    now: u64,
}

impl Slices {
    fn new(count: u16) -> Self {
        let half = |frames, home| HomeRange { frames, home: SliceId(home) };
        let homes = vec![half(0..FRAMES / 2, 0), half(FRAMES / 2..FRAMES, count - 1)];
        let homes = HomeTable::new(homes).expect("two halves");
        let slices: Vec<SliceId> = (0..count).map(SliceId).collect();
        let node = |id: &SliceId| {
            let config = Config::new(*id, slices.clone(), homes.clone(), Epoch(1));
            Node::new(config)
        };
        let nodes = slices.iter().map(node).collect();
        Self { nodes, work: VecDeque::new(), effects: Vec::new(), now: 0 }
    }

    /// Runs a fault of one slice to its end.
    fn fault(&mut self, at: usize, gfn: Gfn, want: Access) {
        self.work.push_back((at, Input::Fault { gfn, want }));
        while let Some((at, input)) = self.work.pop_front() {
            self.now += 1000;
            let step = self.nodes[at].step(self.now, input, &mut NoPages, &mut self.effects);
            step.expect("the protocol holds");
            for effect in self.effects.drain(..) {
                if let Effect::Send { to, message } = effect {
                    let from = SliceId(u16::try_from(at).expect("at most 64 slices"));
                    let input = Input::Message { from, epoch: Epoch(1), message };
                    self.work.push_back((usize::from(to.0), input));
                }
            }
        }
    }

    fn access(&self, at: usize, gfn: Gfn) -> Access {
        self.nodes[at].access(gfn)
    }
}

fn two_slices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("protocol");
    group.bench_function("local hit", |bencher| {
        // A fault on a page that came meanwhile, as of a second vCPU.
        let mut slices = Slices::new(2);
        bencher.iter(|| slices.fault(0, black_box(PAGE), Access::Write));
        assert_eq!(slices.access(0, PAGE), Access::Write);
    });
    group.bench_function("read miss at home", |bencher| {
        // A page of the other slice's home, another one each time.
        let mut slices = Slices::new(2);
        let mut frame = 0;
        bencher.iter(|| {
            if frame == FRAMES / 2 {
                slices = Slices::new(2);
                frame = 0;
            }
            slices.fault(1, black_box(Gfn(frame)), Access::Read);
            frame += 1;
        });
    });
    group.bench_function("recall", |bencher| {
        // Home takes a page back from its writer; then the writer takes it again (a write miss).
        let mut slices = Slices::new(2);
        bencher.iter(|| {
            slices.fault(1, black_box(PAGE), Access::Write);
            slices.fault(0, black_box(PAGE), Access::Write);
        });
        assert_eq!(slices.access(1, PAGE), Access::None);
    });
    group.bench_function("upgrade", |bencher| {
        // Slice 1 reads what slice 0 wrote, then writes; slice 0 takes it back.
        let mut slices = Slices::new(2);
        bencher.iter(|| {
            slices.fault(1, black_box(PAGE), Access::Read);
            slices.fault(1, black_box(PAGE), Access::Write);
            slices.fault(0, black_box(PAGE), Access::Write);
        });
    });
    group.finish();
}

/// A page that its home and `k` other slices read is written by one that does not.
fn readers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("protocol write miss");
    for k in [1u16, 3, 7, 15, 62] {
        let reread = |slices: &mut Slices| {
            slices.fault(0, PAGE, Access::Write);
            for reader in 1..=usize::from(k) {
                slices.fault(reader, PAGE, Access::Read);
            }
        };
        group.bench_function(BenchmarkId::new("readers", k), |bencher| {
            let mut slices = Slices::new(k + 2);
            let writer = usize::from(k) + 1;
            bencher.iter_custom(|rounds| {
                let mut time = Duration::ZERO;
                for _ in 0..rounds {
                    reread(&mut slices);
                    let start = Instant::now();
                    slices.fault(writer, black_box(PAGE), Access::Write);
                    time += start.elapsed();
                }
                time
            });
            assert_eq!(slices.access(writer, PAGE), Access::Write);
            assert_eq!(slices.access(1, PAGE), Access::None);
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = short(); targets = two_slices, readers }
criterion_main!(benches);
