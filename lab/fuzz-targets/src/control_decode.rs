//! The messages of the set-up between bootstrap and companion, and summons to newcomers: no panic, values within
//! bounds.

use transport::control::Control;
use transport::{BLOB_BYTES_MAX, MEMBERS_MAX, Summons};
use wire::control::SUMMONS_BYTES_MAX;

pub(crate) fn run(input: &[u8]) {
    if let Ok(Control::Assign(assign)) = Control::decode(input) {
        assert!(assign.members.len() <= MEMBERS_MAX);
        assert!(assign.blob.len() <= BLOB_BYTES_MAX);
        assert!(assign.tickets.len() <= MEMBERS_MAX);
        assign.config.validate().expect("decoding validates");
    }
    if let Ok(summons) = Summons::decode(input) {
        assert!(summons.newcomer().0 != 0);
        assert!(summons.encode().expect("it was decoded").len() <= SUMMONS_BYTES_MAX);
    }
}
