//! Real-mode code, written by hand. Real mode runs on every KVM, also on one that emulates kernel-mode code.

/// Registers of the local APIC in x2APIC mode (SDM vol. 3, "x2APIC Register Address Space").
pub(crate) const ICR: u32 = 0x830;
pub(crate) const SVR: u32 = 0x80f;
pub(crate) const EOI: u32 = 0x80b;
pub(crate) const LVT_TIMER: u32 = 0x832;

#[derive(Default)]
pub(crate) struct Code(pub(crate) Vec<u8>);

impl Code {
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn wrmsr(self, index: u32, low: u32, high: u32) -> Self {
        self.bytes(&[0x66, 0xb9]) // mov ecx, index
            .bytes(&index.to_le_bytes())
            .bytes(&[0x66, 0xb8]) // mov eax, low
            .bytes(&low.to_le_bytes())
            .bytes(&[0x66, 0xba]) // mov edx, high
            .bytes(&high.to_le_bytes())
            .bytes(&[0x0f, 0x30])
    }

    pub(crate) fn enable_apic(self) -> Self {
        self.wrmsr(SVR, 0x1ff, 0)
    }

    /// Sleeps, again after each interrupt.
    pub(crate) fn sleep(self) -> Self {
        self.bytes(&[0xfb, 0xf4, 0xeb, 0xfc]) // sti ; hlt ; jmp back
    }
}
