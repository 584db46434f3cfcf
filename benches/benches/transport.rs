//! Round trips of one frame by size, by what carries it, and by how both sides wait for it.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use tessera_benches::carrier::Carrier;
use tessera_benches::echo::Echo;
use tessera_benches::placement::Place;
use tessera_benches::raw::Waiting;
use transport::FRAME_BYTES_MAX;
use wire::PAGE_SIZE;
use wire::coherence::HEAD_BYTES;

/// Frames of every kind that there is: small ones, a kilobyte, a page, the largest.
const SIZES: [usize; 4] = [64, 1024, PAGE_SIZE + HEAD_BYTES, FRAME_BYTES_MAX];
const CORES: [Place; 2] = [Place::Core(0), Place::Core(1)];

fn round_trips(criterion: &mut Criterion) {
    for (waiting, how) in [(Waiting::Asleep, "asleep"), (Waiting::Spinning, "spinning")] {
        for carrier in Carrier::all() {
            let name = format!("round trip {} {how}", carrier.name());
            let mut group = criterion.benchmark_group(name);
            for bytes in SIZES {
                // To and fro.
                let both = u64::try_from(2 * bytes).expect("a frame is small");
                group.throughput(Throughput::Bytes(both));
                let mut echo = None;
                group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                    let echo = echo.get_or_insert_with(|| {
                        Echo::new(carrier, bytes, waiting, CORES).expect("two endpoints")
                    });
                    bencher.iter_custom(|count| echo.trips(count).expect("every frame comes back"));
                });
            }
            group.finish();
        }
    }
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1200))
        .sample_size(50)
}

criterion_group! { name = benches; config = short(); targets = round_trips }
criterion_main!(benches);
