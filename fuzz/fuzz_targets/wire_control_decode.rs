//! Control frames of a running VM: no panic on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{Control, Epoch};

fuzz_target!(|input: &[u8]| {
    let _ = Control::decode(Epoch(1), input);
});
