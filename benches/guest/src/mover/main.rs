//! The guest whose vCPU moves: vCPU 1 looks at its counter without end and notes the gaps, with patterns in its registers;
//! vCPU 0 works. They interrupt each other and write the same page. Its programs run in user mode, at native speed.
//!
//! ```text
//!   vCPU 1: spin --gap, or the time is over--> note it, compare registers --every 4 ms--> page of both, timer, interrupt
//!   vCPU 0: work -------------------- every 1 ms --> page of both, interrupt
//!           power button --stop--> vCPU 1 stops --> what it has noted goes to the serial line, a line each --> power off
//! ```
//! Lines: `T counter`, at the start; `G begin length kind`, a gap, kind 0 in the spin and 1 in all else; `V count name`, what
//! must be none; `N count name`, what was done; `X` the end. Numbers are in hexadecimal.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the whole software of a guest")]
// UNSAFETY: addresses are fixed here, and a vCPU writes no other's page but by atomic operations.

#[path = "../booted.rs"]
mod booted;
#[path = "../calls.rs"]
mod calls;
#[path = "../msr.rs"]
mod msr;

use booted::{call, now, number, port, put, read_port, rest, word};
use core::arch::{global_asm, x86_64::__cpuid_count, x86_64::_xgetbv};
use core::panic::PanicInfo;
use core::sync::atomic::Ordering::SeqCst;
use msr::write_msr;

global_asm!(include_str!("boot.s"));
global_asm!(include_str!("spin.s"));

unsafe extern "C" {
    fn spin(frame: *mut Spin, level: u64);
}

/// Of vCPU 0: interrupts that came. Its home is the first slice, as that of all below 16 MiB.
const OWN0: u64 = 0x30_0000;
/// Of vCPU 1: interrupts that came; and of its timer: how often it fired and was early, and what it is armed for.
const OWN1: u64 = 0x130_0000;
const FIRED: u64 = OWN1 + 0x10;
const EARLY: u64 = OWN1 + 0x18;
const ARMED_FOR: u64 = OWN1 + 0x20;
/// Written by both: additions; interrupts that each has sent, and has seen come; the counter as one saw it; to stop, and
/// stopped; vCPU 1 is there.
const BOTH: u64 = 0x140_0000;
const SENT: [u64; 2] = [BOTH + 8, BOTH + 16];
const CAME: [u64; 2] = [BOTH + 24, BOTH + 32];
const SEEN: u64 = BOTH + 40;
const STOP: u64 = BOTH + 48;
const STOPPED: u64 = BOTH + 56;
const UP: u64 = BOTH + 64;
/// What vCPU 1 has found in the end: see [`Found`].
const FOUND: u64 = 0x141_0000;
const FRAME: u64 = 0x142_0000;
/// Gaps: three words each.
const LOG: u64 = 0x150_0000;
const LOG_MAX: u64 = 0x8000;

/// Gaps that are noted, in ticks: 20 us at 2.6 GHz.
const GAP: u64 = 52_000;
/// How long the spin goes on, and how often the vCPUs share something.
const SPIN: u64 = 1_300_000;
const SHARE: u64 = 10_400_000;
const WORK_SHARE: u64 = 2_600_000;
const TIMER: u64 = 9_000_000;
/// A timer that has not fired so long after its deadline never will.
const LOST: u64 = 5_000_000_000;
const DEADLINE: u32 = 0x6e0;
const ICR: u32 = 0x830;
const VECTOR: u64 = 0x51;
const PM1_STATUS: u16 = 0x601;
const PM1_ENABLE: u16 = 0x603;
const PM1_CONTROL: u16 = 0x605;
/// As in `boot.s`.
const DEBUG: [u64; 5] =
    [0x1111_2222_3333, 0x3333_4444_5555, 0x6666_7777_8888, 0x1999_0000_aaaa, 0x4c0];

/// What `spin.s` takes and gives.
#[repr(C, align(4096))]
struct Spin {
    until: u64,
    most: u64,
    begin: u64,
    gap: u64,
    differs: u64,
    /// The first and the last look at the counter.
    first: u64,
    last: u64,
    rest: [u64; 121],
    /// Vectors from word 0, x87 from [`X87`], controls and masks: as they were loaded, and as they were found.
    before: [u64; 384],
    padding: [u64; 128],
    after: [u64; 384],
}
const X87: usize = (0xc00 - 0x400) / 8;
const CONTROLS: usize = (0xc80 - 0x400) / 8;
const MASKS: usize = (0xd00 - 0x400) / 8;

/// What vCPU 1 counts.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Found {
    gaps: u64,
    spins: u64,
    shares: u64,
    registers: u64,
    vectors: u64,
    x87: u64,
    controls: u64,
    masks: u64,
    debug: u64,
    back: u64,
    lost: u64,
    armed: u64,
    level: u64,
}

fn get(at: u64) -> u64 {
    word(at).load(SeqCst)
}

fn set(at: u64, value: u64) {
    word(at).store(value, SeqCst);
}

fn status() -> u64 {
    read_port(PM1_STATUS)
}

fn text(text: &str) {
    text.bytes().for_each(put);
}

fn line(letter: u8, numbers: &[u64], name: &str) {
    put(letter);
    numbers.iter().copied().for_each(number);
    put(b' ');
    text(name);
    put(b'\n');
}

/// Adds one to a word of both, and interrupts the other vCPU if it has seen the last interrupt.
fn share(vcpu: usize, came: u64) {
    word(BOTH).fetch_add(1, SeqCst);
    set(CAME[vcpu], came);
    let sent = get(SENT[vcpu]);
    if get(CAME[1 - vcpu]) == sent {
        set(SENT[vcpu], sent + 1);
        write_msr(ICR, (1 - vcpu as u64) << 32 | VECTOR);
    }
}

#[unsafe(no_mangle)]
extern "C" fn user(vcpu: u64) -> ! {
    if vcpu == 0 { work() } else { watch() }
}

fn work() -> ! {
    while get(UP) == 0 {
        core::hint::spin_loop();
    }
    port(PM1_ENABLE, 1);
    for _ in 0..20 {
        line(b'T', &[now()], "");
    }
    let (mut next, mut rounds, mut sum) = (now(), 0, 1u64);
    while get(STOPPED) == 0 {
        while now() < next {
            sum = sum.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        }
        core::hint::black_box(sum);
        next = now() + WORK_SHARE;
        rounds += 1;
        if get(STOP) == 0 {
            set(SEEN, now());
            share(0, get(OWN0));
            if rounds % 16 == 0 && status() & 1 != 0 {
                set(STOP, 1);
            }
        }
    }
    tell(rounds)
}

/// Tells all.
fn tell(rounds: u64) -> ! {
    // SAFETY: vCPU 1 has stopped, and wrote it before.
    let found =
        unsafe { core::ptr::with_exposed_provenance::<Found>(FOUND as usize).read_volatile() };
    for gap in 0..found.gaps.min(LOG_MAX) {
        let at = LOG + 24 * gap;
        line(b'G', &[get(at), get(at + 8), get(at + 16)], "");
    }
    let unseen = |from: usize, own| get(SENT[from]).abs_diff(get(own));
    let bad = [
        (found.registers, "spins with changed general registers"),
        (found.vectors, "spins with changed vector registers"),
        (found.x87, "spins with changed x87 registers"),
        (found.controls, "spins with changed x87 or SSE controls"),
        (found.masks, "spins with changed mask registers"),
        (found.debug, "changed debug registers"),
        (found.back, "counters that went back"),
        (found.lost, "timers that were lost or doubled"),
        (get(EARLY), "timers that were early"),
        (unseen(0, OWN1), "interrupts to vCPU 1 that were lost or doubled"),
        (unseen(1, OWN0), "interrupts to vCPU 0 that were lost or doubled"),
    ];
    for (count, name) in bad {
        line(b'V', &[count], name);
    }
    let done = [
        (found.gaps, "gaps"),
        (found.spins, "spins"),
        (found.shares, "shares"),
        (rounds, "rounds of vCPU 0"),
        (found.armed, "timers"),
        (get(SENT[0]), "interrupts to vCPU 1"),
        (get(SENT[1]), "interrupts to vCPU 0"),
        (found.level, "level of vectors"),
    ];
    for (count, name) in done {
        line(b'N', &[count], name);
    }
    text("X\n");
    port(PM1_CONTROL, 0x34);
    rest()
}

/// 0 with SSE only, 1 with AVX, 2 with AVX-512 (SDM vol. 1, "Detection of AVX Instructions", "of 512-bit Instructions").
fn level() -> u64 {
    if __cpuid_count(1, 0).ecx >> 27 & 1 == 0 {
        return 0;
    }
    // SAFETY: the kernel has switched it on.
    let enabled = unsafe { xcr0() };
    let wide = __cpuid_count(7, 0).ebx;
    match enabled & 0xe6 {
        0xe6 if wide >> 16 & wide >> 30 & 1 == 1 => 2,
        all if all & 6 == 6 => 1,
        _ => 0,
    }
}

#[target_feature(enable = "xsave")]
fn xcr0() -> u64 {
    // SAFETY: register 0 is always there.
    unsafe { _xgetbv(0) }
}

fn fill(frame: &mut Spin) {
    let mut value = 0x9e37_79b9_7f4a_7c15u64;
    for word in &mut frame.before[..X87] {
        value = value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *word = value;
    }
    for register in 0..8 {
        // Numbers with all bits of the significand in use.
        frame.before[X87 + 2 * register] = 1 << 63 | frame.before[register] >> 1;
        frame.before[X87 + 2 * register + 1] = 0x3fff + register as u64;
        frame.before[MASKS + register] = frame.before[8 + register];
    }
    // Double precision, rounded down; FTZ, and rounded up; and what is usual.
    frame.before[CONTROLS] = 0x067f;
    frame.before[CONTROLS + 1] = 0xdf80;
    frame.before[CONTROLS + 2] = 0x1f80;
    (frame.most, frame.after) = (GAP, [0; 384]);
}

/// What the spin found, if it is not what it was given.
fn compare(frame: &Spin, found: &mut Found) {
    let Spin { before, after, differs, .. } = frame;
    found.registers += u64::from(*differs != 0);
    // A vector has so many of its eight words, and so many are there.
    let (words, registers) = match found.level {
        0 => (2, 16),
        1 => (4, 16),
        _ => (8, 32),
    };
    let same = |register: usize| {
        let at = 8 * register..8 * register + words;
        before[at.clone()] == after[at]
    };
    found.vectors += u64::from(!(0..registers).all(same));
    let same = |register: usize| {
        let at = X87 + 2 * register;
        before[at] == after[at] && before[at + 1] & 0xffff == after[at + 1] & 0xffff
    };
    found.x87 += u64::from(!(0..8).all(same));
    let control = |at: usize, bits: u64| (before[at] ^ after[at]) & bits != 0;
    found.controls += u64::from(control(CONTROLS, 0xffff) || control(CONTROLS + 1, 0xffff));
    let masks = MASKS..MASKS + 8;
    found.masks += u64::from(found.level == 2 && before[masks.clone()] != after[masks]);
}

fn note(found: &mut Found, begin: u64, gap: u64, kind: u64) {
    if gap <= GAP {
        return;
    }
    if found.gaps < LOG_MAX {
        let at = LOG + 24 * found.gaps;
        (0..).zip([begin, gap, kind]).for_each(|(field, value)| set(at + 8 * field, value));
    }
    found.gaps += 1;
}

/// Arms the timer again once it has fired.
fn timer(found: &mut Found) {
    let fired = get(FIRED);
    if fired == found.armed {
        found.armed += 1;
        set(ARMED_FOR, now() + TIMER);
        write_msr(DEADLINE, get(ARMED_FOR));
    } else if fired > found.armed || now() > get(ARMED_FOR) + LOST {
        found.lost += 1;
        found.armed = fired;
    }
}

fn check_debug(found: &mut Found) {
    let mut registers = [0u64; 5];
    call(1, 0, (&raw mut registers).expose_provenance() as u64);
    // SAFETY: the kernel has written it.
    let registers = unsafe { (&raw const registers).read_volatile() };
    found.debug += u64::from(registers != DEBUG);
}

fn watch() -> ! {
    // SAFETY: the page of this vCPU, which nothing else uses.
    let frame = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Spin>(FRAME as usize) };
    fill(frame);
    let mut found = Found { level: level(), ..Found::default() };
    set(UP, 1);
    let mut next = now();
    // What is done outside of the spin is noted after the next one, so that the noting is within such a time, too.
    let (mut last, mut before) = (next, (0, 0));
    loop {
        frame.until = now() + SPIN;
        // SAFETY: the frame is as it wants it.
        unsafe { spin(frame, found.level) };
        let elsewhere = (last, frame.first.saturating_sub(last));
        last = frame.last;
        note(&mut found, before.0, before.1, 1);
        before = elsewhere;
        compare(frame, &mut found);
        found.spins += 1;
        match frame.gap {
            u64::MAX => found.back += 1,
            gap => note(&mut found, frame.begin, gap, 0),
        }
        if now() >= next {
            found.back += u64::from(get(SEEN) > now());
            share(1, get(OWN1));
            timer(&mut found);
            found.shares += 1;
            if found.shares % 8 == 0 {
                check_debug(&mut found);
            }
            if get(STOP) != 0 {
                break;
            }
            next = now() + SHARE;
        }
    }
    // What is on its way is to come.
    let end = now() + LOST;
    while now() < end && (get(SENT[0]) != get(OWN1) || get(SENT[1]) != get(OWN0)) {
        core::hint::spin_loop();
    }
    // SAFETY: nothing else is there.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<Found>(FOUND as usize).write_volatile(found);
    }
    set(STOPPED, 1);
    rest()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    text("P\n");
    rest()
}
