//! The messages of the set-up between bootstrap and companion: no panic, values within bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use transport::control::Control;
use transport::{BLOB_BYTES_MAX, MEMBERS_MAX};

fuzz_target!(|input: &[u8]| {
    if let Ok(Control::Assign(assign)) = Control::decode(input) {
        assert!(assign.members.len() <= MEMBERS_MAX);
        assert!(assign.blob.len() <= BLOB_BYTES_MAX);
        assert!(assign.tickets.len() <= MEMBERS_MAX);
        assign.config.validate().expect("decoding validates");
    }
});
