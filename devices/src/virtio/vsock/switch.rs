//! All connections of a device: who is who, what is next for the guest, what is new for the host. Pure.
//!
//! ```text
//!   guest --packet--> take() --> connection --news--> host side looks at it again
//!   host  --calls---> connect, accept, push, ... ----> next() --packet--> guest
//! ```
//! After a restore nothing passes in either direction before the driver has heard that its connections are reset: Linux
//! ends all that it has when it hears it, those that are new as well, and tells nobody.
//! Everything is bounded. While more resets wait for the guest, or more news for the host, than a bound, no packet of
//! the guest is taken (5.10.6.1).

use super::connection::{Connection, Key, State, Verdict};
use super::header::{HOST_CID, Header, NO_MORE, NO_RECEIVE, NO_SEND, Op, STREAM};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most connections at a time.
pub const CONNECTIONS_MAX: usize = 1024;
/// Resets that wait for the guest above which no packet of it is taken. Connections that the host ends come on top.
const RESETS_MAX: usize = 1024;
/// The same for connections that the host has to look at.
const NEWS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Ports of the host for connections that it asks for begin here; below are those that guests know.
pub(super) const FIRST_PORT: u32 = 1 << 30;

/// A connection, for as long as the device is there: none has the number of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// How a connection is, for the host's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The guest wants to reach this port.
    Dialing(u32),
    /// The guest has not answered.
    Asked,
    /// Bytes flow.
    Open {
        /// Bytes of the guest that wait.
        waiting: usize,
        /// Bytes that the guest can be sent.
        room: usize,
        /// The guest may send more.
        sends: bool,
        /// The guest takes more.
        receives: bool,
    },
}

/// What the host does no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Send.
    Sending,
    /// Take what the guest sends.
    Taking,
    /// Neither: it is gone.
    Both,
}

/// Whether the driver knows that connections of before a restore are reset (5.10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restored {
    /// It does, or there was none.
    Known,
    /// It is to be told.
    Owed,
    /// It was told, and may not have heard it yet.
    Told,
}

/// Who is to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rings {
    /// The worker that brings packets to the guest.
    pub(super) receive: bool,
    /// The worker that takes packets of the guest.
    pub(super) transmit: bool,
    /// The worker that brings events to the guest.
    pub(super) events: bool,
    pub(super) host: bool,
}

#[derive(Debug)]
pub(super) struct Switch {
    cid: u64,
    /// A driver runs the device.
    active: bool,
    connections: BTreeMap<ConnectionId, Connection>,
    ids: BTreeMap<Key, ConnectionId>,
    resets: VecDeque<Header>,
    /// Connections with something for the guest, each once.
    ready: VecDeque<ConnectionId>,
    news: BTreeSet<ConnectionId>,
    /// Packets of the guest wait for room.
    held: bool,
    next_id: u64,
    next_port: u32,
    restored: Restored,
    rings: Rings,
}

impl Switch {
    pub(super) fn new(cid: u64) -> Self {
        Self {
            cid,
            active: false,
            connections: BTreeMap::new(),
            ids: BTreeMap::new(),
            resets: VecDeque::new(),
            ready: VecDeque::new(),
            news: BTreeSet::new(),
            held: false,
            next_id: 0,
            next_port: FIRST_PORT,
            restored: Restored::Known,
            rings: Rings::default(),
        }
    }

    pub(super) fn take_rings(&mut self) -> Rings {
        std::mem::take(&mut self.rings)
    }

    /// A driver takes the device, or lets it go: no connection outlives that.
    pub(super) fn set_active(&mut self, active: bool) {
        self.active = active;
        // A driver that resets the device has no connection any more.
        if !active {
            self.restored = Restored::Known;
        }
        self.news.extend(std::mem::take(&mut self.connections).into_keys());
        self.ids.clear();
        self.resets.clear();
        self.ready.clear();
        self.rings.host = true;
    }

    /// Whether the driver is to be told that its connections are reset.
    pub(super) fn owes_reset(&self) -> bool {
        self.restored == Restored::Owed
    }

    /// The driver is being told.
    pub(super) fn reset_told(&mut self) {
        self.restored = Restored::Told;
    }

    /// The driver has heard it: from now on its connections are those that it has here.
    pub(super) fn reset_heard(&mut self) {
        self.restored = Restored::Known;
        self.rings.receive = true;
        self.release();
    }

    /// What a saved state has: whether a driver runs the device, and the host's next port.
    pub(super) fn lasting(&self) -> (bool, u32) {
        (self.active || self.restored != Restored::Known, self.next_port)
    }

    /// Goes on from there.
    pub(super) fn go_on(&mut self, active: bool, next_port: u32) {
        let restored = if active { Restored::Owed } else { Restored::Known };
        (self.restored, self.next_port) = (restored, next_port);
        self.rings.events = true;
    }

    /// Whether a packet of the guest can be taken. If not, its worker is woken when one can.
    pub(super) fn takes(&mut self) -> bool {
        let full = self.resets.len() >= RESETS_MAX || self.news.len() >= NEWS_MAX;
        self.held = full || self.restored != Restored::Known;
        !self.held
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.held) {
            self.rings.transmit = true;
        }
    }

    /// Takes a packet of the guest. Without data where there is more than fits a buffer.
    pub(super) fn take(&mut self, header: &Header, data: Option<&[u8]>) {
        // What claims to be from elsewhere is nobody's.
        if !self.active || header.src_cid.get() != self.cid {
            return;
        }
        let op = Op::of(header.op.get());
        let key = Key { host: header.dst_port.get(), guest: header.src_port.get() };
        let ours = header.dst_cid.get() == HOST_CID && header.kind.get() == STREAM;
        let id = self.ids.get(&key).copied().filter(|_| ours);
        let Some((id, connection)) = id.and_then(|id| Some((id, self.connections.get_mut(&id)?)))
        else {
            match op {
                Some(Op::Request) if ours => self.ask_host(key, header),
                Some(Op::Reset) => {}
                _ => self.refuse(header),
            }
            return;
        };
        connection.hear_credit(header);
        let verdict =
            op.map_or(Verdict::Broken, |op| connection.take(op, header.flags.get(), data));
        match verdict {
            Verdict::GoesOn => {
                self.enqueue(id);
                // The host has nothing to do where only the guest's room has changed.
                if !matches!(op, Some(Op::CreditUpdate | Op::CreditRequest)) {
                    self.tell_host(id);
                }
            }
            Verdict::Over => drop(self.remove(id)),
            Verdict::Left => self.detach(id),
            Verdict::Broken => {
                self.remove(id);
                self.refuse(header);
            }
        }
    }

    /// The guest asks for a connection.
    fn ask_host(&mut self, key: Key, header: &Header) {
        if !self.take_place() {
            self.refuse(header);
            return;
        }
        let id = self.enter(Connection::new(key, State::Dialing));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.hear_credit(header);
        }
        self.tell_host(id);
    }

    fn refuse(&mut self, header: &Header) {
        self.resets.push_back(header.refusal());
        self.rings.receive = true;
    }

    fn enter(&mut self, connection: Connection) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.ids.insert(connection.key, id);
        self.connections.insert(id, connection);
        id
    }

    /// Whether there is a place for a connection.
    pub(super) fn has_place(&self) -> bool {
        self.connections.len() < CONNECTIONS_MAX || self.closing().is_some()
    }

    /// One that only waits for the guest to let go.
    fn closing(&self) -> Option<ConnectionId> {
        let mut all = self.connections.iter();
        all.find(|(_, connection)| connection.is_closing()).map(|(id, _)| *id)
    }

    /// True if there is a place, at the cost of a connection that is closing.
    fn take_place(&mut self) -> bool {
        if self.connections.len() < CONNECTIONS_MAX {
            return true;
        }
        let Some(id) = self.closing() else { return false };
        self.reset(id);
        true
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.detach(id);
        self.connections.remove(&id)
    }

    /// The guest has no such connection any more, and may use its ports for another.
    fn detach(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if self.ids.get(&connection.key) == Some(&id) {
            self.ids.remove(&connection.key);
        }
        if std::mem::take(&mut connection.queued) {
            self.ready.retain(|other| *other != id);
        }
        self.tell_host(id);
    }

    fn tell_host(&mut self, id: ConnectionId) {
        self.news.insert(id);
        self.rings.host = true;
    }

    /// Has the connection its turn if it has something for the guest.
    fn enqueue(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.queued && connection.has_more() {
            connection.queued = true;
            self.ready.push_back(id);
            self.rings.receive = true;
        }
    }

    /// The next packet for the guest, with at most so many bytes of data. Connections take turns.
    pub(super) fn next(&mut self, limit: usize) -> Option<(Header, Vec<u8>)> {
        if self.restored != Restored::Known {
            return None;
        }
        if let Some(header) = self.resets.pop_front() {
            self.release();
            return Some((header, Vec::new()));
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.queued = false;
            let packet = connection.next(self.cid, limit);
            let room = connection.host_waits && connection.room() > 0;
            connection.host_waits &= !room;
            let closing = connection.is_closing();
            self.enqueue(id);
            // Who asks comes again.
            self.rings.receive = false;
            // One that is closing has a place for another.
            if room || closing {
                self.tell_host(id);
            }
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    /// Connections that the host has to look at since the last question, also those that are gone.
    pub(super) fn take_news(&mut self) -> BTreeSet<ConnectionId> {
        self.release();
        std::mem::take(&mut self.news)
    }

    pub(super) fn view(&mut self, id: ConnectionId) -> Option<View> {
        let connection = self.connections.get_mut(&id)?;
        Some(match connection.state {
            State::Dialing => View::Dialing(connection.key.host),
            State::Asked => View::Asked,
            State::Open | State::Left => {
                let room = connection.room();
                connection.host_waits = room == 0;
                View::Open {
                    waiting: connection.to_host.len(),
                    room,
                    sends: connection.guest_shut & NO_SEND == 0,
                    receives: connection.guest_shut & NO_RECEIVE == 0,
                }
            }
        })
    }

    /// The host asks for a connection to a port of the guest; gives its own port as well.
    pub(super) fn connect(&mut self, guest: u32) -> Option<(ConnectionId, u32)> {
        if !self.active || !self.take_place() {
            return None;
        }
        // There are more ports than connections.
        let key = loop {
            let key = Key { host: self.next_port, guest };
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.ids.contains_key(&key) && key.host != u32::MAX {
                break key;
            }
        };
        let id = self.enter(Connection::new(key, State::Asked));
        self.enqueue(id);
        Some((id, key.host))
    }

    /// Changes a connection, if it is there, and gives it its turn.
    fn change<T>(&mut self, id: ConnectionId, act: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let result = self.connections.get_mut(&id).map(act);
        self.enqueue(id);
        result
    }

    pub(super) fn accept(&mut self, id: ConnectionId) {
        self.change(id, Connection::accept);
    }

    /// Copies what the guest has sent and gives the number of bytes.
    pub(super) fn peek(&self, id: ConnectionId, bytes: &mut [u8]) -> usize {
        let Some(connection) = self.connections.get(&id) else { return 0 };
        let (front, back) = connection.to_host.as_slices();
        let first = front.len().min(bytes.len());
        let second = back.len().min(bytes.len() - first);
        bytes[..first].copy_from_slice(&front[..first]);
        bytes[first..first + second].copy_from_slice(&back[..second]);
        first + second
    }

    pub(super) fn forward(&mut self, id: ConnectionId, bytes: usize) {
        self.change(id, |connection| connection.forward(bytes));
    }

    /// Adds bytes for the guest, as many as there is room for.
    pub(super) fn push(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        let pushed = self.change(id, |connection| {
            let count = bytes.len().min(connection.room());
            connection.to_guest.extend(&bytes[..count]);
            connection.host_waits = connection.room() == 0;
            count
        });
        pushed.unwrap_or(0)
    }

    /// The host does this no more. The guest is told so behind what it is still to get.
    pub(super) fn end(&mut self, id: ConnectionId, end: End) {
        let flags = match end {
            End::Sending => NO_SEND,
            End::Taking => NO_RECEIVE,
            End::Both => NO_MORE,
        };
        self.change(id, |connection| connection.end(flags));
    }

    /// Ends a connection at once, on the host's side.
    pub(super) fn reset(&mut self, id: ConnectionId) {
        let Some(connection) = self.remove(id) else { return };
        if connection.is_known() {
            self.resets.push_back(connection.header(self.cid, Op::Reset, 0));
            self.rings.receive = true;
        }
    }

    /// Bytes that wait for the host.
    pub(super) fn waiting(&self) -> usize {
        self.connections.values().map(|connection| connection.to_host.len()).sum()
    }

    /// Most that all connections may hold, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(self.connections.len() <= CONNECTIONS_MAX);
        let left = self.connections.values().filter(|connection| connection.state == State::Left);
        assert_eq!(self.connections.len(), self.ids.len() + left.count());
        assert!(self.resets.len() <= RESETS_MAX + CONNECTIONS_MAX);
        assert!(self.news.len() <= NEWS_MAX + 2 * CONNECTIONS_MAX);
        let queued = self.connections.values().filter(|connection| connection.queued).count();
        assert_eq!(queued, self.ready.len());
        for connection in self.connections.values() {
            assert!(connection.to_host.len() <= super::BUFFER_BYTES);
            assert!(connection.to_guest.len() <= super::BUFFER_BYTES);
            assert!(connection.queued || !connection.has_more());
        }
    }
}
