//! The messages of the coherence protocol: no panic on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{Batch, Message};

fuzz_target!(|input: &[u8]| {
    let _ = Message::decode(input);
    if let Ok(Some((batch, bodies))) = Batch::decode(input) {
        assert_eq!(batch.messages(bodies).count(), usize::from(batch.pages));
    }
});
