//! The guest that has two vCPUs work at the same things again and again, and says how long each took. It starts as the
//! mover does (`../mover/boot.s`); its programs run in user mode, at native speed.
//!
//! ```text
//!   vCPU 0: fill ==wait for each other==> look at all --"P"--> load 0 ==> load 1 ==> ... ==> "R ..." --+
//!   vCPU 1: fill ========================> look at all ------> load 0 ==> load 1 ==> ...              |
//!                                                              ^--------------------------------------+
//! ```
//! Lines, numbers in hexadecimal: `P counter`, all memory has been touched by both; `R round sum times...`, of each load the
//! ticks of vCPU 0 and of vCPU 1. The sum is the same in every round, whichever slices the guest is on.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the whole software of a guest")]
// UNSAFETY: addresses are fixed here, and what both vCPUs write is written by atomic operations.

#[path = "../booted.rs"]
mod booted;
#[path = "../calls.rs"]
mod calls;
#[path = "../msr.rs"]
mod msr;

use booted::{now, number, put, read_port, rest, word};
use core::arch::global_asm;
use core::panic::PanicInfo;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use msr::write_msr;

global_asm!(include_str!("../mover/boot.s"));

/// Interrupts that came to each vCPU.
const OWN: [u64; 2] = [0x30_0000, 0x130_0000];
/// Who has come to the meeting, over all meetings.
const MET: u64 = 0x140_0000;
/// What both add to, and what each hands the other.
const BOTH: u64 = 0x141_0000;
const TURN: u64 = 0x142_0000;
/// What vCPU 1 found: a sum, then a time for each load.
const FOUND: u64 = 0x143_0000;
/// The memory that is walked over: its end is the end of the VM's memory.
const FIRST: u64 = 32 << 20;
const END: u64 = 256 << 20;
const HALF: u64 = (END - FIRST) / 2;
const PAGE: u64 = 4096;
const LINE: u64 = 64;

const ICR: u32 = 0x830;
const VECTOR: u64 = 0x51;
const PM1_STATUS: u16 = 0x601;

/// How much each load does: some milliseconds.
const MULTIPLICATIONS: u64 = 5_000_000;
const RANDOM_READS: u64 = 100_000;
const ADDITIONS: u64 = 400_000;
const TURNS: u64 = 20_000;
const PORT_READS: u64 = 400;
const INTERRUPTS: u64 = 200;

/// The loads in the order of their times: what the vCPU with this number does in the round with that one; a sum.
const LOADS: [fn(u64, u64) -> u64; 8] = [
    |_, _| (0..MULTIPLICATIONS).fold(1, |sum, _| core::hint::black_box(next(sum))),
    |vcpu, _| lines(half(vcpu)).map(load).fold(0, u64::wrapping_add),
    |vcpu, _| random_reads(vcpu),
    |vcpu, _| {
        lines(half(vcpu)).for_each(|at| word(at).store(at, Relaxed));
        0
    },
    add,
    hand_over,
    |_, _| (0..PORT_READS).fold(0, |sum, _| sum + read_port(PM1_STATUS)),
    interrupt,
];

fn load(at: u64) -> u64 {
    word(at).load(Relaxed)
}

fn next(value: u64) -> u64 {
    value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

fn half(vcpu: u64) -> u64 {
    FIRST + vcpu * HALF
}

fn lines(half: u64) -> impl Iterator<Item = u64> {
    (half..half + HALF).step_by(LINE as usize)
}

/// Each waits for the last one's word.
fn random_reads(vcpu: u64) -> u64 {
    (0..RANDOM_READS).fold(vcpu, |at, _| {
        let line = (next(at) >> 32) * ((END - FIRST) / LINE) >> 32;
        next(at).wrapping_add(load(FIRST + line * LINE))
    })
}

fn wait_until(so: impl Fn() -> bool) {
    while !so() {
        core::hint::spin_loop();
    }
}

/// The vCPUs add to the same word.
fn add(_: u64, _: u64) -> u64 {
    for _ in 0..ADDITIONS {
        word(BOTH).fetch_add(1, SeqCst);
    }
    0
}

/// The vCPUs write a word in turn.
fn hand_over(vcpu: u64, round: u64) -> u64 {
    let first = round * TURNS;
    for turn in (first..first + TURNS).filter(|turn| turn & 1 == vcpu) {
        wait_until(|| word(TURN).load(SeqCst) == turn);
        word(TURN).store(turn + 1, SeqCst);
    }
    0
}

/// The vCPUs interrupt each other in turn.
fn interrupt(vcpu: u64, round: u64) -> u64 {
    let send = || write_msr(ICR, (1 - vcpu) << 32 | VECTOR);
    for count in round * INTERRUPTS..(round + 1) * INTERRUPTS {
        if vcpu == 0 {
            send();
        }
        wait_until(|| word(OWN[vcpu as usize]).load(SeqCst) > count);
        if vcpu == 1 {
            send();
        }
    }
    0
}

/// Waits for the other vCPU. They have met so often before.
fn meet(met: &mut u64) {
    *met += 2;
    word(MET).fetch_add(1, SeqCst);
    wait_until(|| word(MET).load(SeqCst) >= *met);
}

#[unsafe(no_mangle)]
extern "C" fn user(vcpu: u64) -> ! {
    let mut met = 0;
    // Every other page, so that no chunk is of one vCPU.
    for page in (FIRST + vcpu * PAGE..END).step_by(2 * PAGE as usize) {
        (page..page + PAGE).step_by(LINE as usize).for_each(|at| word(at).store(at, Relaxed));
    }
    meet(&mut met);
    let all = (FIRST..END).step_by(PAGE as usize).map(load);
    core::hint::black_box(all.fold(0, u64::wrapping_add));
    meet(&mut met);
    if vcpu == 0 {
        put(b'P');
        number(now());
        put(b'\n');
    }
    for round in 0.. {
        let (mut times, mut sum) = ([0; LOADS.len()], 0u64);
        for (work, time) in LOADS.iter().zip(&mut times) {
            meet(&mut met);
            let begin = now();
            sum = next(sum).wrapping_add(work(vcpu, round));
            *time = now().wrapping_sub(begin);
        }
        if vcpu == 1 {
            word(FOUND).store(sum, SeqCst);
            (1..).zip(times).for_each(|(at, time)| word(FOUND + 8 * at).store(time, SeqCst));
        }
        meet(&mut met);
        if vcpu == 0 {
            tell(round, sum, &times);
        }
    }
    rest()
}

fn tell(round: u64, sum: u64, times: &[u64]) {
    put(b'R');
    number(round);
    let added = load(BOTH).wrapping_sub((round + 1) * 2 * ADDITIONS);
    number(next(sum).wrapping_add(load(FOUND)).wrapping_add(added));
    for (at, time) in (1..).zip(times) {
        number(*time);
        number(load(FOUND + 8 * at));
    }
    put(b'\n');
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    put(b'E');
    put(b'\n');
    rest()
}
