//! The messages of the coherence protocol: no panic on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::Message;

fuzz_target!(|input: &[u8]| {
    let _ = Message::decode(input);
});
