//! One connection: its state, what waits in both directions, and the credit of both sides (5.10.6.3). Pure.
//!
//! ```text
//!   guest asks:  dialing --host accepts--> open             \
//!   host asks:   asked --guest responds--> open              > reset by either side, or nonsense: gone
//!   open --one side is gone, the other was told--> closing  /
//!   open --the guest sends no more, then resets--> left --the host has taken all--> gone
//! ```
//! A reset behind an orderly end (5.10.6.5) loses nothing: Linux sends one when a host that is slow has not answered its
//! shutdown within eight seconds, and what the guest had sent before is still on its way to the host.

use super::header::{HOST_CID, Header, NO_MORE, NO_RECEIVE, NO_SEND, Op, STREAM};
use std::collections::VecDeque;

/// Most bytes that wait in one direction: what the guest is told that there is room for.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// The same for counting with the guest.
const BUFFER: u32 = 64 << 10;
/// The guest is told of room once there is so much that it does not know of.
const NEWS_BYTES: u32 = BUFFER / 2;

/// Ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) host: u32,
    pub(super) guest: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The guest asks, the host has not answered.
    Dialing,
    /// The host asks, the guest has not answered.
    Asked,
    Open,
    /// The guest has none any more; the host still takes what it had sent before.
    Left,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoesOn,
    /// The guest has reset it.
    Over,
    /// The guest has reset it, and had ended its direction before: the host gets what is still there.
    Left,
    /// The guest does not keep to the protocol: it is reset.
    Broken,
}

/// What the guest is still to be told, without data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    request: bool,
    response: bool,
    credit: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) state: State,
    pub(super) to_host: VecDeque<u8>,
    pub(super) to_guest: VecDeque<u8>,
    /// It is in the list of those that have something for the guest.
    pub(super) queued: bool,
    /// The host would send more had there been room.
    pub(super) host_waits: bool,
    due: Due,
    /// What the guest said last: its room, and how much it has taken.
    peer_alloc: u32,
    peer_forwarded: u32,
    /// Bytes sent to the guest; counters wrap around.
    sent: u32,
    /// Bytes passed on to the host, and what of that the guest knows.
    forwarded: u32,
    told: u32,
    /// What each side has said that it does no more, and what of that of the host the guest knows.
    pub(super) guest_shut: u32,
    host_shut: u32,
    told_shut: u32,
}

impl Connection {
    /// A connection that one side asks for.
    pub(super) fn new(key: Key, state: State) -> Self {
        Self {
            key,
            state,
            to_host: VecDeque::new(),
            to_guest: VecDeque::new(),
            queued: false,
            host_waits: false,
            due: Due { request: state == State::Asked, ..Due::default() },
            peer_alloc: 0,
            peer_forwarded: 0,
            sent: 0,
            forwarded: 0,
            told: 0,
            guest_shut: 0,
            host_shut: 0,
            told_shut: 0,
        }
    }

    /// Bytes that the guest has room for. A guest that claims to have taken what was never sent has none.
    fn credit(&self) -> usize {
        let in_flight = self.sent.wrapping_sub(self.peer_forwarded);
        usize::try_from(self.peer_alloc.saturating_sub(in_flight)).unwrap_or(0)
    }

    /// Takes what every packet says of the guest's room.
    pub(super) fn hear_credit(&mut self, header: &Header) {
        self.peer_alloc = header.buf_alloc.get();
        self.peer_forwarded = header.fwd_cnt.get();
    }

    /// Takes a packet; without data where there is more than can be right.
    pub(super) fn take(&mut self, op: Op, flags: u32, data: Option<&[u8]>) -> Verdict {
        match (op, self.state) {
            (Op::Reset, State::Open) if self.has_last_words() => {
                self.leave();
                return Verdict::Left;
            }
            (Op::Reset, _) => return Verdict::Over,
            (Op::Response, State::Asked) if !self.due.request => self.state = State::Open,
            (Op::Data, State::Open) => return self.take_data(data),
            (Op::Shutdown, State::Open) => self.shut(flags),
            (Op::CreditUpdate, State::Open) => {}
            (Op::CreditRequest, State::Open) => self.due.credit = true,
            _ => return Verdict::Broken,
        }
        Verdict::GoesOn
    }

    fn take_data(&mut self, data: Option<&[u8]>) -> Verdict {
        let Some(data) = data else { return Verdict::Broken };
        let room = BUFFER_BYTES - self.to_host.len();
        if self.guest_shut & NO_SEND != 0 || data.len() > room {
            return Verdict::Broken;
        }
        self.to_host.extend(data);
        if self.host_shut & NO_RECEIVE != 0 {
            self.forward(data.len());
        }
        Verdict::GoesOn
    }

    /// The guest has said that what waits here for the host is the last.
    fn has_last_words(&self) -> bool {
        self.guest_shut & NO_SEND != 0 && !self.to_host.is_empty()
    }

    fn leave(&mut self) {
        (self.state, self.guest_shut, self.due) = (State::Left, NO_MORE, Due::default());
        self.to_guest.clear();
    }

    fn shut(&mut self, flags: u32) {
        self.guest_shut |= flags & NO_MORE;
        if self.guest_shut & NO_RECEIVE != 0 {
            self.to_guest.clear();
        }
    }

    /// Bytes that the host may add.
    pub(super) fn room(&self) -> usize {
        let takes = self.state == State::Open
            && self.guest_shut & NO_RECEIVE == 0
            && self.host_shut & NO_SEND == 0;
        if takes { BUFFER_BYTES - self.to_guest.len() } else { 0 }
    }

    /// The host has answered the guest.
    pub(super) fn accept(&mut self) {
        if self.state == State::Dialing {
            (self.state, self.due.response) = (State::Open, true);
        }
    }

    /// The host has taken so many bytes.
    pub(super) fn forward(&mut self, bytes: usize) {
        let bytes = bytes.min(self.to_host.len());
        self.to_host.drain(..bytes);
        // At most a buffer.
        self.forwarded = self.forwarded.wrapping_add(u32::try_from(bytes).unwrap_or(0));
        if self.forwarded.wrapping_sub(self.told) >= NEWS_BYTES {
            self.due.credit = true;
        }
    }

    /// The host does this no more.
    pub(super) fn end(&mut self, flags: u32) {
        self.host_shut |= flags;
        if flags & NO_RECEIVE != 0 {
            self.forward(self.to_host.len());
        }
    }

    /// The guest knows of it.
    pub(super) fn is_known(&self) -> bool {
        !self.due.request && self.state != State::Left
    }

    /// The host is gone, and the guest was told so.
    pub(super) fn is_closing(&self) -> bool {
        self.told_shut == NO_MORE
    }

    /// Something is to go to the guest, and may.
    pub(super) fn has_more(&self) -> bool {
        let due = self.due != Due::default() || self.has_data() || self.has_shutdown();
        due && self.state != State::Left
    }

    fn has_data(&self) -> bool {
        !self.to_guest.is_empty() && self.credit() > 0
    }

    /// A shutdown comes behind all data.
    fn has_shutdown(&self) -> bool {
        self.host_shut != self.told_shut && self.to_guest.is_empty() && self.state == State::Open
    }

    /// The next packet for the guest, with at most so many bytes of data.
    pub(super) fn next(&mut self, cid: u64, limit: usize) -> Option<(Header, Vec<u8>)> {
        let (mut data, mut flags) = (Vec::new(), 0);
        let op = if std::mem::take(&mut self.due.request) {
            Op::Request
        } else if std::mem::take(&mut self.due.response) {
            Op::Response
        } else if self.has_data() {
            let count = self.credit().min(limit).min(self.to_guest.len());
            data = self.to_guest.drain(..count).collect();
            self.sent = self.sent.wrapping_add(u32::try_from(count).unwrap_or(0));
            Op::Data
        } else if self.has_shutdown() {
            self.told_shut = self.host_shut;
            flags = self.host_shut;
            Op::Shutdown
        } else if self.due.credit {
            Op::CreditUpdate
        } else {
            return None;
        };
        // Every packet tells of the room.
        (self.due.credit, self.told) = (false, self.forwarded);
        let header = Header { flags: flags.into(), ..self.header(cid, op, data.len()) };
        Some((header, data))
    }

    /// A packet of the host.
    pub(super) fn header(&self, cid: u64, op: Op, bytes: usize) -> Header {
        Header {
            src_cid: HOST_CID.into(),
            dst_cid: cid.into(),
            src_port: self.key.host.into(),
            dst_port: self.key.guest.into(),
            len: u32::try_from(bytes).unwrap_or(0).into(),
            kind: STREAM.into(),
            op: op.code().into(),
            flags: 0.into(),
            buf_alloc: BUFFER.into(),
            fwd_cnt: self.forwarded.into(),
        }
    }
}
