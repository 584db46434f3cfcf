//! Control frames of a running VM: no panic on any bytes.

use wire::{Control, Epoch};

pub(crate) fn run(input: &[u8]) {
    let _ = Control::decode(Epoch(1), input);
}
