//! Encoding and decoding of everything that slices send to each other, by size: coherence messages of a head
//! only, with a page, with table entries; control frames of a head, and a report.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use wire::coherence::ENTRIES_MAX;
use wire::control::{DeviceCall, InterruptEvent, REPORT_BYTES_MAX, Space, VcpuMessage};
use wire::{Access, Control, Entry, Epoch, Gfn, Held, Message, PAGE_SIZE, SliceId, VcpuId};

const EPOCH: Epoch = Epoch(1);

fn pair(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    bytes: &[u8],
    mut encode: impl FnMut(&mut Vec<u8>),
    decode: impl Fn(&[u8]) -> bool,
) {
    assert!(decode(bytes), "{name} can be decoded");
    group.throughput(Throughput::Bytes(u64::try_from(bytes.len()).expect("a frame is small")));
    let mut out = Vec::with_capacity(bytes.len());
    group.bench_function(format!("encode {name}"), |bencher| {
        bencher.iter(|| {
            out.clear();
            encode(&mut out);
            black_box(&mut out);
        });
    });
    group.bench_function(format!("decode {name}"), |bencher| {
        bencher.iter(|| decode(black_box(bytes)));
    });
}

fn coherence(criterion: &mut Criterion) {
    let gfn = Gfn(0x1234);
    let entry = |index| Entry { gfn, index, old: 0, new: 0x5067 };
    let diff = |count: usize| {
        let entries = (0..512).cycle().map(entry).take(count).collect();
        Message::Diff { flush: 1, entries }
    };
    let cases = [
        ("get", Message::Get { gfn, want: Access::Write, table: None }, false),
        ("confirm", Message::Confirm { gfn, held: Held::Exclusive, asked: false }, false),
        (
            "fetch",
            Message::Fetch {
                gfn,
                requester: SliceId(1),
                keep: Access::Read,
                acks: 0,
                owner: true,
                table: None,
            },
            false,
        ),
        (
            "data, page",
            Message::Data { gfn, access: Access::Write, acks: 0, held_us: 0, table: None },
            true,
        ),
        (
            "data, zero page",
            Message::Data { gfn, access: Access::Read, acks: 0, held_us: 0, table: None },
            false,
        ),
        ("diff of 1", diff(1), false),
        ("diff of 8", diff(8), false),
        ("diff of 64", diff(64), false),
        ("diff of the most entries", diff(ENTRIES_MAX), false),
        ("root", Message::Root { vcpu: VcpuId(0), gfn }, false),
    ];
    let mut group = criterion.benchmark_group("coherence codec");
    for (name, message, page) in &cases {
        let body = if *page { vec![7; PAGE_SIZE] } else { Vec::new() };
        let mut bytes = Vec::new();
        message.encode(EPOCH, *page, &mut bytes);
        bytes.extend_from_slice(&body);
        // The body is part of the work: it is copied behind the head, as into a ring.
        let encode = |out: &mut Vec<u8>| {
            black_box(message).encode(EPOCH, *page, out);
            out.extend_from_slice(black_box(&body));
        };
        let decode = |bytes: &[u8]| black_box(Message::decode(bytes)).is_ok();
        pair(&mut group, name, &bytes, encode, decode);
    }
    group.finish();
}

fn control(criterion: &mut Criterion) {
    let call = DeviceCall {
        id: 7,
        space: Space::Port,
        write: true,
        address: 0x3f8,
        length: 1,
        data: 0x41,
    };
    let report = |bytes| Control::Report(vec![b'x'; bytes]);
    let cases = [
        (
            "interrupt",
            Control::Vcpu {
                vcpu: VcpuId(1),
                message: VcpuMessage::Event(InterruptEvent::Fixed(0xfd)),
            },
        ),
        ("device call", Control::Call(call)),
        ("answer", Control::Answer { id: 7, data: 1 }),
        ("report of 4 KiB", report(4096)),
        ("report, largest", report(REPORT_BYTES_MAX)),
    ];
    let mut group = criterion.benchmark_group("control codec");
    for (name, frame) in &cases {
        let bytes = frame.encode(EPOCH);
        let encode = |out: &mut Vec<u8>| *out = black_box(frame).encode(EPOCH);
        let decode = |bytes: &[u8]| black_box(Control::decode(EPOCH, bytes)).is_ok();
        pair(&mut group, name, &bytes, encode, decode);
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(600))
}

criterion_group! { name = benches; config = short(); targets = coherence, control }
criterion_main!(benches);
