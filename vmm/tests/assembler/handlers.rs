//! Handlers of interrupts, and what they have in common, for guests that count.

use crate::assembler::{Code, EOI};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// What the guest wants to be seen: an event, for the test.
pub(crate) const PORT_EVENT: u16 = 0x99;

impl Code {
    pub(crate) fn tell(self, event: u8) -> Self {
        self.bytes(&[0xb0, event, 0xe6, PORT_EVENT.to_le_bytes()[0]]) // mov al, event ; out
    }

    /// inc word [at]
    pub(crate) fn count(self, at: u64) -> Self {
        let [low, high, ..] = at.to_le_bytes();
        self.bytes(&[0xff, 0x06, low, high])
    }

    /// A handler keeps the registers that it uses.
    pub(crate) fn keeping(self, inner: impl FnOnce(Self) -> Self) -> Self {
        inner(self.bytes(&[0x66, 0x60])) // pushad
            .wrmsr(EOI, 0, 0)
            .bytes(&[0x66, 0x61, 0xcf]) // popad ; iret
    }
}

pub(crate) fn put(memory: &GuestMemoryMmap, at: u64, code: &Code) {
    memory.write_slice(&code.0, GuestAddress(at)).expect("code lies in RAM");
}

pub(crate) fn put_handler(memory: &GuestMemoryMmap, vector: u8, code: &Code) {
    let at = 0xa000 + u16::from(vector) * 0x80;
    assert!(code.0.len() <= 0x80, "handler {vector:#x} is too long");
    put(memory, u64::from(vector) * 4, &Code(u32::from(at).to_le_bytes().to_vec()));
    put(memory, at.into(), code);
}
