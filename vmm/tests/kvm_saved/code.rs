//! The guest: real-mode code of two vCPUs.
//!
//! vCPU 0 works through rounds. In each it writes and reads a port, reads and writes a register in memory, writes a
//! string to a port, mixes all that into one number, and sends an interrupt to vCPU 1, for which it waits until that has
//! counted it. vCPU 1 sleeps until it is interrupted.

use crate::assembler::{Code, ICR, LVT_TIMER};
use crate::handlers::{put, put_handler};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Guest memory; above it is the device's register, in reach of real mode.
pub(crate) const RAM: usize = 0x8_0000;
/// Registers of the device: its number is read here, and the guest's written 4 bytes on.
pub(crate) const DEVICE: u64 = 0xb_8000;

/// Bytes are written here; strings go to 0x96.
const PORT_WRITE: u8 = 0x98;
pub(crate) const PORT_READ: u16 = 0x97;

/// Vectors: counted by whoever gets it, and before the others; the timer of vCPU 0; told by whoever gets it.
pub(crate) const COUNT: u8 = 0x51;
pub(crate) const TIMER: u8 = 0x44;
pub(crate) const TELL: u8 = 0x45;
/// Events: the guest is ready; it is done with its rounds. The others are vectors.
pub(crate) const READY: u8 = 1;
pub(crate) const DONE: u8 = 2;

/// Page of vCPU 1's entry.
pub(crate) const ENTRY_PAGE: u8 = 9;
/// Where the guest keeps what it has found.
pub(crate) const COUNTED: u64 = 0x6000;
pub(crate) const RESULT: u64 = 0x6010;
pub(crate) const ARMED_FOR: u64 = 0x6020;
pub(crate) const FIRED_AT: u64 = 0x6028;
pub(crate) const FIRED: u64 = 0x6030;
/// vCPU 1 has enabled its APIC.
const UP: u64 = 0x6040;
pub(crate) const VECTORS: u64 = 0x6100;
pub(crate) const VECTORS_AFTER: u64 = 0x6200;
const STRING: u16 = 0x6300;

const DEADLINE: u32 = 0x6e0;
const INITIAL_COUNT: u32 = 0x838;
const DIVIDE: u32 = 0x83e;

impl Code {
    /// mov [at], a 32-bit register (eax 0, edx 2, ebx 3)
    fn store(self, at: u64, register: u8) -> Self {
        let [low, high, ..] = at.to_le_bytes();
        self.bytes(&[0x66, 0x89, register << 3 | 6, low, high])
    }
}

fn put_handlers(memory: &GuestMemoryMmap) {
    put_handler(memory, COUNT, &Code::default().keeping(|code| code.count(COUNTED)));
    let fired = |code: Code| {
        let stamped = code.bytes(&[0x0f, 0x31]).store(FIRED_AT, 0).store(FIRED_AT + 4, 2);
        stamped.count(FIRED).tell(TIMER)
    };
    put_handler(memory, TIMER, &Code::default().keeping(fired));
    put_handler(memory, TELL, &Code::default().keeping(|code| code.tell(TELL)));
    let entry = u64::from(ENTRY_PAGE) << 12;
    let other = Code::default().bytes(&[0xbc, 0x00, 0x50]); // mov sp, 0x5000
    put(memory, entry, &other.enable_apic().count(UP).tell(READY).sleep());
}

/// The rounds: vCPU 0 starts at 0x8000 and tells when it is done.
pub(crate) fn put_rounds(memory: &GuestMemoryMmap, rounds: u16) {
    put_handlers(memory);
    let [low, high] = rounds.to_le_bytes();
    let head = Code::default()
        .enable_apic()
        .bytes(&[0xb8, 0x00, 0xb8, 0x8e, 0xc0]) // mov ax, 0xb800 ; mov es, ax
        .bytes(&[0xf3, 0x0f, 0x6f, 0x0e, 0x00, 0x61]) // movdqu xmm1, [VECTORS]
        .bytes(&[0x83, 0x3e, 0x40, 0x60, 0x00, 0x74, 0xf9]) // wait until [UP] is not 0
        .bytes(&[0x66, 0x31, 0xdb, 0x31, 0xed]); // xor ebx, ebx ; xor bp, bp
    let round = Code::default()
        .bytes(&[0x89, 0xe8, 0xe6, PORT_WRITE]) // mov ax, bp ; out PORT_WRITE, al
        .bytes(&[0xe4, 0x97]) // in al, PORT_READ
        .bytes(&[0x66, 0xc1, 0xc3, 0x05, 0x30, 0xc3]) // rol ebx, 5 ; xor bl, al
        .bytes(&[0x26, 0x66, 0xa1, 0x00, 0x00]) // mov eax, es:[0]
        .bytes(&[0x66, 0x01, 0xc3]) // add ebx, eax
        .bytes(&[0x26, 0x66, 0x89, 0x1e, 0x04, 0x00]) // mov es:[4], ebx
        .bytes(&[0xbe]) // mov si, STRING
        .bytes(&STRING.to_le_bytes())
        .bytes(&[0xb9, 0x10, 0x00, 0xba, 0x96, 0x00, 0xf3, 0x6e]) // 16 bytes to port 0x96
        .wrmsr(ICR, COUNT.into(), 1)
        .bytes(&[0x45]) // inc bp
        .bytes(&[0x39, 0x2e, 0x00, 0x60, 0x75, 0xfa]) // wait until [COUNTED] is bp
        .bytes(&[0x81, 0xfd, low, high]); // cmp bp, rounds
    let back = -i16::try_from(round.0.len() + 4).expect("a round is short");
    let code = head
        .bytes(&round.0)
        .bytes(&[0x0f, 0x82]) // jb to the start of the round
        .bytes(&back.to_le_bytes())
        .store(RESULT, 3)
        .bytes(&[0xf3, 0x0f, 0x7f, 0x0e, 0x00, 0x62]) // movdqu [VECTORS_AFTER], xmm1
        .tell(DONE)
        .sleep();
    put(memory, 0x8000, &code);
    let text: Vec<u8> = (0..16).map(|n| n * 7 + 3).collect();
    memory.write_slice(&text, GuestAddress(STRING.into())).expect("it lies in RAM");
    memory.write_slice(&text, GuestAddress(VECTORS)).expect("it lies in RAM");
}

/// What vCPU 0 arms its timer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// A deadline.
    Deadline,
    /// One count, of nanoseconds.
    Count,
}

/// The timer: vCPU 0 arms it for so many ticks ahead, or nanoseconds, says that it is ready, and sleeps.
pub(crate) fn put_timer(memory: &GuestMemoryMmap, armed: Armed, ticks: u32) {
    put_handlers(memory);
    let mode = if armed == Armed::Deadline { 2 << 17 } else { 0 };
    let code = Code::default()
        .enable_apic()
        .wrmsr(LVT_TIMER, mode | u32::from(TIMER), 0)
        .wrmsr(DIVIDE, 0b1011, 0) // by one
        .bytes(&[0x0f, 0x31, 0x66, 0x05]) // rdtsc ; add eax, ticks
        .bytes(&ticks.to_le_bytes())
        .bytes(&[0x66, 0x83, 0xd2, 0x00]) // adc edx, 0
        .store(ARMED_FOR, 0)
        .store(ARMED_FOR + 4, 2);
    let code = match armed {
        Armed::Deadline => code
            .bytes(&[0x66, 0xb9]) // mov ecx, DEADLINE
            .bytes(&DEADLINE.to_le_bytes())
            .bytes(&[0x0f, 0x30]),
        Armed::Count => code.wrmsr(INITIAL_COUNT, ticks, 0),
    };
    put(memory, 0x8000, &code.tell(READY).sleep());
}

/// vCPU 0 sleeps and tells interrupts.
pub(crate) fn put_sleeper(memory: &GuestMemoryMmap) {
    put_handlers(memory);
    put(memory, 0x8000, &Code::default().enable_apic().tell(READY).sleep());
}

/// vCPU 0 writes its bus without end.
pub(crate) fn put_writer(memory: &GuestMemoryMmap) {
    put_handlers(memory);
    put(
        memory,
        0x8000,
        &Code::default().enable_apic().tell(READY).bytes(&[0xe6, PORT_WRITE, 0xeb, 0xfc]),
    );
}
