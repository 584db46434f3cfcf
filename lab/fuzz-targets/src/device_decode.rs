//! Frames of delegated devices: no panic on any bytes, and what is accepted is written the same way.

use wire::device::split_packets;
use wire::{DeviceFrame, Epoch};

pub(crate) fn run(input: &[u8]) {
    if let Ok(frame) = DeviceFrame::decode(Epoch(1), input) {
        assert_eq!(frame.encode(Epoch(1)), input);
    }
    let _ = split_packets(input, 65_562);
}
