//! Messages of an earlier epoch are still on their way when the new one begins.

use super::ordinary;
use super::scenario::Scenario;
use dsm_protocol::{Access, Entry, Gfn, Message, SliceId};

/// Three slices and one page, with one message of an earlier epoch in flight.
#[must_use]
pub fn stale_message(message: Message) -> Scenario {
    let mut scenario = ordinary::one_page(3, 1);
    scenario.name = "a message of another epoch";
    scenario.stale = vec![(0, 1, message)];
    scenario
}

/// The messages that would do harm.
#[must_use]
pub fn harmful() -> Vec<Message> {
    let gfn = Gfn(0);
    let entry = Entry { gfn, index: 0, old: 0, new: 9 };
    vec![
        Message::Data { gfn, access: Access::Write, acks: 0, held_us: 0, table: None },
        Message::Acked { gfn, upgrade: 0, held_us: 0 },
        Message::Confirm { gfn, held: dsm_protocol::Held::Exclusive, asked: false },
        Message::Invalidate { gfn, requester: SliceId(2), upgrade: 0 },
        Message::Fetch {
            gfn,
            requester: SliceId(2),
            keep: Access::None,
            acks: 0,
            owner: true,
            table: None,
        },
        Message::Go { gfn },
        Message::Diff { flush: 1, entries: vec![entry] },
    ]
}

/// The kind of a message, for printing.
#[must_use]
pub fn kind(message: &Message) -> String {
    let text = format!("{message:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}
