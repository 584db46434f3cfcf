//! The guest of which checkpoints are written: all its memory has contents, and one vCPU changes a part of it at random. It
//! starts as the mover does (`../mover/boot.s`); its programs run in user mode, at native speed.
//!
//! ```text
//!   vCPU 0: fill ==wait for each other==> look at the other half --"T"--> look at the counter without end --+--> power off
//!   vCPU 1: fill =======================> look at the other half -------> store, work, store, work, ... --> stop
//!                                                    both note gaps and, every 20 ms, how much they have done
//! ```
//! Each vCPU fills one half of memory, which is that of its slice where there are two. Of every fourth chunk, it then reads
//! a page of the other half, so that these chunks are shared.
//!
//! Lines: `T counter`, at the start; `B`, the power button was pressed; and then `G begin length vCPU`, a gap; `W time done vCPU`,
//! what a vCPU has done up to then; `N count name`, what was done; `X` the end. Numbers are in hexadecimal.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the whole software of a guest")]
// UNSAFETY: addresses are fixed here or are those of memory, and what both vCPUs write is written by atomic operations.

#[path = "../booted.rs"]
mod booted;
#[path = "../calls.rs"]
mod calls;

use booted::{now, number, port, put, read_port, rest, word};
use core::arch::global_asm;
use core::panic::PanicInfo;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

global_asm!(include_str!("../mover/boot.s"));

/// Pages of both vCPUs: who has come to the meeting; to stop; vCPU 1 has stopped.
const MET: u64 = 0x140_0000;
const STOP: u64 = 0x141_0000;
const STOPPED: u64 = 0x142_0000;
/// Where memory is free, besides what is above [`FREE_AGAIN`]: behind the stack of vCPU 0, up to the page of vCPU 1.
const FREE: u64 = 0x40_0000;
const FREE_END: u64 = 0x130_0000;
const FREE_AGAIN: u64 = 0x150_0000;
/// What a vCPU notes is where its own half begins to be free: gaps, two words each, and then work, two words each.
const NOTES_MAX: u64 = 0x4_0000;
const WORK_AT: u64 = 16 * NOTES_MAX;

/// The map of memory in the zero page (Documentation/arch/x86/zero-page.rst).
const ENTRIES: u64 = 0x71e8;
const MAP: u64 = 0x72d0;
const RAM: u64 = 1;
const FOUR_GIB: u64 = 4 << 30;

const LINE: u64 = 64;
const CHUNK: u64 = 2 << 20;
/// What is changed at random: 16 MiB from the middle of the second half on.
const PART: u64 = 16 << 20;
/// Gaps that are noted, in ticks: 500 us at 2.6 GHz; and how often it is noted what was done: 20 ms. All is told byte by byte.
const GAP: u64 = 1_300_000;
const NOTE: u64 = 52_000_000;
/// Work between two stores: some 40 us.
const WORK: u64 = 25_000;
/// Between two looks at the power button, 1 ms: it is a port, which takes long.
const BUTTON: u64 = 2_600_000;

const PM1_STATUS: u16 = 0x601;
const PM1_ENABLE: u16 = 0x603;
const PM1_CONTROL: u16 = 0x605;

/// Memory, in two parts: up to the hole for devices, and behind it.
#[derive(Clone, Copy)]
struct Map {
    low_end: u64,
    high_bytes: u64,
}

impl Map {
    fn read() -> Self {
        let mut map = Self { low_end: 0, high_bytes: 0 };
        let entries = word(ENTRIES).load(Relaxed) & 0xff;
        for entry in 0..entries {
            let at = MAP + 20 * entry;
            let (start, bytes) = (read(at), read(at + 8));
            if read(at + 16) & 0xffff_ffff != RAM {
                continue;
            }
            if start >= FOUR_GIB {
                map.high_bytes = map.high_bytes.max(start + bytes - FOUR_GIB);
            } else {
                map.low_end = map.low_end.max(start + bytes);
            }
        }
        map
    }

    fn bytes(self) -> u64 {
        self.low_end + self.high_bytes
    }

    /// Address of this byte of memory.
    fn at(self, byte: u64) -> u64 {
        if byte < self.low_end { byte } else { byte - self.low_end + FOUR_GIB }
    }
}

/// A number that may lie at any address.
fn read(at: u64) -> u64 {
    // SAFETY: in the zero page.
    unsafe { core::ptr::with_exposed_provenance::<u64>(at as usize).read_unaligned() }
}

fn next(value: u64) -> u64 {
    value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

/// Waits for the other vCPU. They have met so often before.
fn meet(met: &mut u64) {
    *met += 2;
    word(MET).fetch_add(1, SeqCst);
    while word(MET).load(SeqCst) < *met {
        core::hint::spin_loop();
    }
}

fn fill(map: Map, bytes: core::ops::Range<u64>) {
    for byte in bytes.step_by(LINE as usize) {
        word(map.at(byte)).store(byte | 1, Relaxed);
    }
}

/// What a vCPU has noted.
struct Notes {
    gaps_at: u64,
    gaps: u64,
    /// Gaps for which there was no room.
    lost: u64,
    works: u64,
    last: u64,
    next: u64,
}

impl Notes {
    fn new(gaps_at: u64) -> Self {
        let last = now();
        Self { gaps_at, gaps: 0, lost: 0, works: 0, last, next: last }
    }

    /// Looks at the counter, and notes what there is to note. True every 20 ms.
    fn look(&mut self, done: u64) -> bool {
        let time = now();
        let gap = time.saturating_sub(self.last);
        if gap > GAP && self.gaps < NOTES_MAX {
            note(self.gaps_at + 16 * self.gaps, self.last, gap);
            self.gaps += 1;
        } else if gap > GAP {
            self.lost += 1;
        }
        self.last = time;
        if time < self.next {
            return false;
        }
        self.next = time + NOTE;
        if self.works < NOTES_MAX {
            note(self.gaps_at + WORK_AT + 16 * self.works, time, done);
            self.works += 1;
        }
        true
    }

    fn tell(gaps_at: u64, [gaps, works]: [u64; 2], vcpu: u64) {
        for (letter, at, count) in [(b'G', gaps_at, gaps), (b'W', gaps_at + WORK_AT, works)] {
            for at in (0..count).map(|number| at + 16 * number) {
                let noted = [word(at).load(Relaxed), word(at + 8).load(Relaxed)];
                line(letter, &[noted[0], noted[1], vcpu], "");
            }
        }
    }
}

fn note(at: u64, time: u64, value: u64) {
    word(at).store(time, Relaxed);
    word(at + 8).store(value, Relaxed);
}

fn line(letter: u8, numbers: &[u64], name: &str) {
    put(letter);
    numbers.iter().copied().for_each(number);
    put(b' ');
    name.bytes().for_each(put);
    put(b'\n');
}

#[unsafe(no_mangle)]
extern "C" fn user(vcpu: u64) -> ! {
    let map = Map::read();
    let (half, end) = (map.bytes() / 2, map.bytes());
    let mut met = 0;
    let other = if vcpu == 0 {
        fill(map, FREE..FREE_END);
        fill(map, FREE_AGAIN..half);
        half..end
    } else {
        fill(map, half..end);
        FREE_AGAIN.next_multiple_of(CHUNK)..half
    };
    meet(&mut met);
    let looked = other.step_by(4 * CHUNK as usize).map(|byte| word(map.at(byte + CHUNK / 2)));
    core::hint::black_box(looked.fold(0, |sum, it| sum ^ it.load(Relaxed)));
    meet(&mut met);
    if vcpu == 0 { watch(map) } else { store(map) }
}

fn watch(map: Map) -> ! {
    port(PM1_ENABLE, 1);
    for _ in 0..20 {
        line(b'T', &[now()], "");
    }
    let (mut notes, mut looks, mut button) = (Notes::new(FREE), 0, 0);
    loop {
        looks += 1;
        notes.look(looks);
        if notes.last < button {
            continue;
        }
        button = notes.last + BUTTON;
        if read_port(PM1_STATUS) & 1 != 0 {
            break;
        }
    }
    put(b'B');
    put(b'\n');
    word(STOP).store(1, SeqCst);
    while word(STOPPED).load(SeqCst) == 0 {
        core::hint::spin_loop();
    }
    Notes::tell(FREE, [notes.gaps, notes.works], 0);
    let theirs = [8, 16].map(|at| word(STOPPED + at).load(SeqCst));
    Notes::tell(map.at(map.bytes() / 2), theirs, 1);
    line(b'N', &[word(STOPPED + 24).load(SeqCst)], "stores");
    line(b'N', &[notes.lost + word(STOPPED + 32).load(SeqCst)], "lost gaps");
    put(b'X');
    put(b'\n');
    port(PM1_CONTROL, 0x34);
    rest()
}

fn store(map: Map) -> ! {
    let mut notes = Notes::new(map.at(map.bytes() / 2));
    let (mut stores, mut value) = (0, 1);
    let part = map.bytes() / 4 * 3;
    loop {
        value = next(value);
        let line = (value >> 32) * (PART / LINE) >> 32;
        word(map.at(part + line * LINE)).store(value | 1, Relaxed);
        stores += 1;
        for _ in 0..WORK {
            value = core::hint::black_box(next(value));
        }
        if notes.look(stores) && word(STOP).load(SeqCst) != 0 {
            break;
        }
    }
    let told = [notes.gaps, notes.works, stores, notes.lost];
    (1..).zip(told).for_each(|(at, count)| word(STOPPED + 8 * at).store(count, SeqCst));
    word(STOPPED).store(1, SeqCst);
    rest()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    put(b'E');
    put(b'\n');
    rest()
}
