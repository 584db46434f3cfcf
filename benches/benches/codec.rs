//! Encoding and decoding of coherence messages: head only, with a page, with table entries.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use wire::{Access, Entry, Epoch, Gfn, Message, PAGE_SIZE};

fn frame(message: &Message, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(Epoch(1), !body.is_empty(), &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn codec(criterion: &mut Criterion) {
    let gfn = Gfn(0x1234);
    let entry = |index| Entry { gfn, index, old: 0, new: 0x5067 };
    let cases = [
        ("get", Message::Get { gfn, want: Access::Write, table: None }, vec![]),
        (
            "page",
            Message::Data { gfn, access: Access::Write, acks: 0, held_us: 0, table: None },
            vec![7; PAGE_SIZE],
        ),
        ("diff of 8", Message::Diff { flush: 1, entries: (0..8).map(entry).collect() }, vec![]),
    ];
    let mut group = criterion.benchmark_group("codec");
    for (name, message, body) in &cases {
        let bytes = frame(message, body);
        let size = u64::try_from(bytes.len()).expect("a frame is small");
        group.throughput(Throughput::Bytes(size));
        let mut out = Vec::with_capacity(bytes.len());
        group.bench_function(format!("encode {name}"), |bencher| {
            bencher.iter(|| {
                out.clear();
                black_box(message).encode(Epoch(1), !body.is_empty(), &mut out);
            });
        });
        group.bench_function(format!("decode {name}"), |bencher| {
            bencher.iter(|| Message::decode(black_box(&bytes)).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
