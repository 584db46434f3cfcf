//! Requests to a disk of another slice by size and by what carries them, beside a disk of this slice and the
//! bare stream of the same carrier. The disk is memory: what costs is the way.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use tessera_benches::carrier::Carrier;
use tessera_benches::delegated::{Delegated, Way};
use tessera_benches::placement::Place;
use tessera_benches::raw::{Source, stream};

/// What file systems ask for: a block, and the largest request.
const SIZES: [u32; 2] = [4096, 1 << 20];
/// Requests under way.
const DEPTHS: [u64; 2] = [1, 4];
const CORES: [Place; 2] = [Place::Core(0), Place::Core(1)];

fn requests(criterion: &mut Criterion) {
    for (way, name) in [(Way::Read, "read"), (Way::Write, "write")] {
        for bytes in SIZES {
            let mut group = criterion.benchmark_group(format!("disk {name} of {bytes} bytes"));
            group.throughput(Throughput::Bytes(bytes.into()));
            for depth in DEPTHS {
                let mut bench = |name: &str, disk: Delegated| {
                    group.bench_function(BenchmarkId::new(name, depth), |bencher| {
                        let time = |count| disk.requests(way, bytes, depth, count);
                        bencher.iter_custom(|count| time(count).expect("the disk answers"));
                    });
                };
                bench("local", Delegated::local());
                for carrier in Carrier::all() {
                    bench(carrier.name(), Delegated::remote(carrier).expect("two slices"));
                }
            }
            group.finish();
        }
    }
}

fn bare(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bare stream of 1 MiB");
    group.throughput(Throughput::Bytes(1 << 20));
    for carrier in Carrier::all() {
        group.bench_function(carrier.name(), |bencher| {
            bencher.iter_custom(|count| {
                let pages = usize::try_from(count * 256).expect("a few megabytes");
                let found =
                    stream(carrier, pages, Source::Memory, CORES).expect("the stream arrives");
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                Duration::from_secs_f64(pages as f64 * 4096.0 / 1e6 / found)
            });
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000))
        .sample_size(20)
}

criterion_group! { name = benches; config = short(); targets = requests, bare }
criterion_main!(benches);
