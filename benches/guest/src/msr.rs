//! A register of the processor, by a system call of `mover/boot.s`.

pub(crate) fn write_msr(index: u32, value: u64) {
    crate::booted::call(0, index, value);
}
