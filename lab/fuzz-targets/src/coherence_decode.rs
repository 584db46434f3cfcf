//! The messages of the coherence protocol: no panic on any bytes.

use wire::{Batch, Message};

pub(crate) fn run(input: &[u8]) {
    let _ = Message::decode(input);
    if let Ok(Some((batch, bodies))) = Batch::decode(input) {
        assert_eq!(batch.messages(bodies).count(), usize::from(batch.pages));
    }
}
