//! The guest: real-mode code of two vCPUs that interrupt each other and count.
//!
//! vCPU 0 works through rounds: it sends two vectors to vCPU 1 and waits until both are counted, and vCPU 1's answer, too.
//! A lost or doubled interrupt stops it for good. vCPU 1 works with its timer all the time: it arms a deadline and waits
//! until that is counted, asleep or busy in turn, and looks whether its registers and its counter are what they were. The
//! handler of its first vector is slow, so that the vCPU is often stopped in it, with the second vector pending. It counts at
//! its end, so the vector is not sent again before. PVM's KVM ends an interrupt as it delivers it: the same vector would
//! interrupt its own handler, over and over, until the stack runs over.

use crate::assembler::{Code, ICR, LVT_TIMER};
use crate::handlers::{put, put_handler};
use crate::stray;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(crate) const RAM: usize = 0x8_0000;

/// Vectors to vCPU 1: slow, and answered; to vCPU 0: the answer.
const SLOW: u8 = 0x51;
const ANSWERED: u8 = 0x71;
const ANSWER: u8 = 0x53;
const TIMER: u8 = 0x64;
/// From devices to vCPU 1: counted.
pub(crate) const DEVICE: u8 = 0x47;
/// Tells that it came.
pub(crate) const TELL: u8 = 0x45;

/// Events; the others are vectors.
pub(crate) const READY: u8 = 1;
pub(crate) const DONE: u8 = 2;

pub(crate) const ENTRY_PAGE: u8 = 9;

/// The page of what the guest counts.
const COUNTERS: u64 = 0x6000;
/// Where it counts: what came, in words.
pub(crate) const SLOW_COUNT: u64 = 0x6000;
pub(crate) const ANSWERED_COUNT: u64 = 0x6002;
pub(crate) const ANSWER_COUNT: u64 = 0x6004;
pub(crate) const UP: u64 = 0x6006;
const ARMED: u64 = 0x6008;
pub(crate) const FIRED: u64 = 0x600a;
pub(crate) const DEVICE_COUNT: u64 = 0x600c;
/// What must not be: the slow handler within itself, a timer too early, a counter that went back, a register that changed.
pub(crate) const NESTED: u64 = 0x600e;
pub(crate) const EARLY: u64 = 0x6010;
pub(crate) const BACK: u64 = 0x6012;
pub(crate) const CHANGED: u64 = 0x6014;
/// Slow handlers that have begun and not ended.
const DEPTH: u64 = 0x6016;
/// vCPU 0 is to end its rounds when this is not 0.
pub(crate) const STOP: u64 = 0x6020;
const ARMED_FOR: u64 = 0x6030;
const LAST: u64 = 0x6038;
pub(crate) const VECTORS: u64 = 0x6100;
pub(crate) const VECTORS_AFTER: u64 = 0x6200;

const DEADLINE: u32 = 0x6e0;
/// Ticks to a deadline: it often passes while the vCPU moves, or seldom.
pub(crate) const SOON: u32 = 150_000;
pub(crate) const LATER: u32 = 20_000_000;
const MARK: u32 = 0x1234_5678;

fn low(at: u64) -> [u8; 2] {
    let [low, high, ..] = at.to_le_bytes();
    [low, high]
}

impl Code {
    /// An instruction with a memory operand.
    fn at(self, instruction: &[u8], at: u64) -> Self {
        self.bytes(instruction).bytes(&low(at))
    }

    /// Skips `then` when this short jump is taken.
    fn unless(self, jump: u8, then: impl FnOnce(Self) -> Self) -> Self {
        let then = then(Self::default());
        self.bytes(&[jump, u8::try_from(then.0.len()).expect("a short jump")]).bytes(&then.0)
    }

    /// Does `body` again when this near jump (0x0f, ..) is taken.
    fn again_if(self, jump: u8, body: impl FnOnce(Self) -> Self) -> Self {
        let body = body(Self::default());
        let back = -i16::try_from(body.0.len() + 4).expect("a loop is short");
        self.bytes(&body.0).bytes(&[0x0f, jump]).bytes(&back.to_le_bytes())
    }

    /// rdtsc ; compares with the 64 bits there: carry if it is less
    fn compare_counter(self, at: u64) -> Self {
        self.bytes(&[0x0f, 0x31]).at(&[0x66, 0x2b, 0x06], at).at(&[0x66, 0x1b, 0x16], at + 4)
    }
}

const JNE: u8 = 0x85;
const JE: u8 = 0x84;
const SHORT_JE: u8 = 0x74;
const SHORT_JNC: u8 = 0x73;
const SHORT_JZ: u8 = 0x74;

fn put_handlers(memory: &GuestMemoryMmap) {
    stray::put(memory, COUNTERS, RAM);
    let handler = |vector, inner: &dyn Fn(Code) -> Code| {
        put_handler(memory, vector, &Code::default().keeping(inner));
    };
    handler(SLOW, &|code| {
        code.at(&[0x83, 0x3e], DEPTH)
            .bytes(&[0x00]) // cmp word [DEPTH], 0
            .unless(SHORT_JE, |code| code.count(NESTED))
            .count(DEPTH)
            .bytes(&[0xfb, 0xb9, 0xb8, 0x0b, 0xe2, 0xfe, 0xfa]) // sti ; mov cx, 3000 ; loop ; cli
            .at(&[0xff, 0x0e], DEPTH) // dec word [DEPTH]
            .count(SLOW_COUNT)
    });
    handler(ANSWERED, &|code| code.count(ANSWERED_COUNT).wrmsr(ICR, ANSWER.into(), 0));
    handler(ANSWER, &|code| code.count(ANSWER_COUNT));
    handler(DEVICE, &|code| code.count(DEVICE_COUNT));
    handler(TELL, &|code| code.tell(TELL));
    handler(TIMER, &|code| {
        let checked = code.compare_counter(ARMED_FOR).unless(SHORT_JNC, |code| code.count(EARLY));
        checked.count(FIRED)
    });
    let text: Vec<u8> = (0..16).map(|n| n * 7 + 3).collect();
    memory.write_slice(&text, GuestAddress(VECTORS)).expect("it lies in RAM");
}

/// vCPU 1: sets up its timer, and says that it is ready.
fn head() -> Code {
    Code::default()
        .bytes(&[0xbc, 0x00, 0x50]) // mov sp, 0x5000
        .bytes(&[0x0f, 0x20, 0xe0, 0x66, 0x0d, 0x00, 0x06, 0x00, 0x00]) // mov eax, cr4 ; or eax, 0x600
        .bytes(&[0x0f, 0x22, 0xe0]) // mov cr4, eax: SSE
        .enable_apic()
        .wrmsr(LVT_TIMER, 2 << 17 | u32::from(TIMER), 0)
        .at(&[0xf3, 0x0f, 0x6f, 0x0e], VECTORS) // movdqu xmm1, [VECTORS]
        .bytes(&[0x66, 0xbb]) // mov ebx, MARK
        .bytes(&MARK.to_le_bytes())
        .bytes(&[0x31, 0xff]) // xor di, di
        .count(UP)
        .tell(READY)
}

/// Arms the timer and waits until it has fired, over and over.
fn timer_rounds(code: Code, ticks: u32) -> Code {
    let asleep = |code: Code| {
        // cli ; cmp [FIRED], di ; if not equal: sti ; hlt
        code.bytes(&[0xfa])
            .at(&[0x39, 0x3e], FIRED)
            .unless(SHORT_JE, |code| code.bytes(&[0xfb, 0xf4]))
    };
    let round = |code: Code| {
        code.compare_counter(LAST)
            .unless(SHORT_JNC, |code| code.count(BACK))
            .bytes(&[0x0f, 0x31]) // rdtsc
            .at(&[0x66, 0x89, 0x06], LAST) // mov [LAST], eax
            .at(&[0x66, 0x89, 0x16], LAST + 4) // mov [LAST + 4], edx
            .bytes(&[0x66, 0x05]) // add eax, ticks
            .bytes(&ticks.to_le_bytes())
            .bytes(&[0x66, 0x83, 0xd2, 0x00]) // adc edx, 0
            .at(&[0x66, 0x89, 0x06], ARMED_FOR)
            .at(&[0x66, 0x89, 0x16], ARMED_FOR + 4)
            .bytes(&[0x47]) // inc di
            .at(&[0x89, 0x3e], ARMED) // mov [ARMED], di
            .bytes(&[0x66, 0xb9]) // mov ecx, DEADLINE
            .bytes(&DEADLINE.to_le_bytes())
            .bytes(&[0x0f, 0x30])
            .again_if(JNE, |code| {
                let turn = code.bytes(&[0xf7, 0xc7, 0x01, 0x00]).unless(SHORT_JZ, asleep); // test di, 1
                turn.bytes(&[0xfb]) // sti
                    .at(&[0xf3, 0x0f, 0x7f, 0x0e], VECTORS_AFTER)
                    .at(&[0x39, 0x3e], FIRED)
            })
            .bytes(&[0x66, 0x81, 0xfb]) // cmp ebx, MARK
            .bytes(&MARK.to_le_bytes())
            .unless(SHORT_JE, |code| code.count(CHANGED))
            .bytes(&[0x31, 0xc0]) // xor ax, ax: always again
    };
    code.again_if(JE, round)
}

/// vCPU 1 says that it is ready and sleeps. vCPU 0 waits until [`STOP`] is not 0 and sends it an INIT, then until it is 0
/// again and sends the start-up.
pub(crate) fn put_starter(memory: &GuestMemoryMmap) {
    put_sleepers(memory);
    let waits = |code: Code, jump| {
        code.again_if(jump, |code| code.at(&[0x83, 0x3e], STOP).bytes(&[0x00])) // cmp word [STOP], 0
    };
    let init = waits(Code::default().enable_apic(), JE).wrmsr(ICR, 0x4500, 1).tell(DONE);
    let startup = waits(init, JNE).wrmsr(ICR, 0x4600 | u32::from(ENTRY_PAGE), 1).tell(DONE);
    put(memory, 0x8000, &startup.sleep());
}

/// Both work until they are told to stop.
pub(crate) fn put_workers(memory: &GuestMemoryMmap, ticks: u32) {
    put_handlers(memory);
    put(memory, u64::from(ENTRY_PAGE) << 12, &timer_rounds(head(), ticks));
    let first = Code::default().enable_apic().bytes(&[0xfb, 0x31, 0xed]); // sti ; xor bp, bp
    let up = first.again_if(JE, |code| code.at(&[0x83, 0x3e], UP).bytes(&[0x00])); // cmp word [UP], 0
    let rounds = up.again_if(JE, |code| {
        let mut round = code
            .bytes(&[0x45]) // inc bp
            .wrmsr(ICR, SLOW.into(), 1)
            .wrmsr(ICR, ANSWERED.into(), 1);
        for count in [SLOW_COUNT, ANSWERED_COUNT, ANSWER_COUNT] {
            round = round.again_if(JNE, |code| code.at(&[0x39, 0x2e], count)); // cmp [count], bp
        }
        round.at(&[0x83, 0x3e], STOP).bytes(&[0x00])
    });
    put(memory, 0x8000, &rounds.tell(DONE).sleep());
}

/// vCPU 1 says that it is ready and sleeps, as vCPU 0.
pub(crate) fn put_sleepers(memory: &GuestMemoryMmap) {
    put_handlers(memory);
    put(memory, u64::from(ENTRY_PAGE) << 12, &head().sleep());
    put(memory, 0x8000, &Code::default().enable_apic().sleep());
}
