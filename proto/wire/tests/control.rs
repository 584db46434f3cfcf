//! The codec of control frames: arbitrary bytes never make it panic, and what it accepts it would
//! have written the same way.

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_wire::{Control, Epoch};

const EPOCH: Epoch = Epoch(0x0102_0304);

/// Heads that get past the first checks often enough to reach all of them.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let head = (0_u8..28, 0_u8..8, any::<u8>(), 0_u8..14, any::<[u8; 24]>());
    head.prop_map(|(kind, event, vector, length, rest)| {
        let mut bytes = vec![kind, event, vector, length];
        bytes.extend_from_slice(&EPOCH.0.to_le_bytes());
        bytes.extend_from_slice(&rest);
        bytes
    })
}

proptest! {
    #[test]
    fn decode_of_arbitrary_bytes_never_panics(bytes in vec(any::<u8>(), 0..80)) {
        let _ = Control::decode(EPOCH, &bytes);
    }

    #[test]
    fn decode_of_a_plausible_head_is_stable(bytes in plausible()) {
        if let Ok(frame) = Control::decode(EPOCH, &bytes) {
            let again = Control::decode(EPOCH, &frame.encode(EPOCH));
            prop_assert_eq!(again, Ok(frame));
        }
    }

    #[test]
    fn decode_of_a_cut_head_is_refused(bytes in plausible(), cut in 0_usize..32) {
        prop_assert!(Control::decode(EPOCH, &bytes[..cut]).is_err());
    }
}
