//! One end of the queue pairs to a peer, from the open port to the first message.
//!
//! ```text
//!  open (port, pool, queue pairs, slots posted) ─offer─> connect ─> greet ─> await_greeting ─> carrier
//! ```
//!
//! Numbers are exchanged over the stream on which the peer proved the secret, not by the connection
//! manager (rdma_cm): its private data, the only place for a proof, is not reachable through
//! `sideway`, and without one anybody on the fabric could take a peer's place (decision 13).

use super::carrier::{RdmaCarrier, lanes};
use super::completion::Done;
use super::device::{Port, Wanted, causes, find};
use super::error::RdmaError;
use super::lane::Lane;
use super::offer::{Offer, Pair};
use super::pool::{SLOT_BYTES, SLOTS, received};
use super::verbs::{Link, completions};
use crate::memory::PageMemory;
use crate::traits::Class;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairAttribute, QueuePairState};
use std::array;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv6Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Sends of a message before the queue pair gives up, besides the first.
const RETRIES: u8 = 7;
/// For a receiver that has no slot posted: 7 means for ever, and it never happens (`lane`).
const RECEIVER_RETRIES: u8 = 7;
/// 0.64 ms between those (InfiniBand specification, table 45).
const RECEIVER_TIMER: u8 = 12;
const HOPS: u8 = 64;
/// Local acknowledgement timeouts are 4.096 us times a power of two.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// One end of the queue pairs between two slices.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) link: Link,
    lanes: [Lane; Class::COUNT],
    sequences: [u32; Class::COUNT],
    peer: Option<Gid>,
}

impl Endpoint {
    /// Opens a port, makes the queue pairs and posts all slots.
    /// Memory that is exposed is pinned, and the peer may write pages into it.
    pub(crate) fn open(wanted: &Wanted, memory: Option<&PageMemory>) -> Result<Self, RdmaError> {
        Self::open_with(wanted, completions(), memory)
    }

    /// The same with so many places in the completion queue.
    pub(super) fn open_with(
        wanted: &Wanted,
        places: u32,
        memory: Option<&PageMemory>,
    ) -> Result<Self, RdmaError> {
        let link = Link::create(find(wanted)?, places, memory)?;
        let sequences = sequences().map_err(RdmaError::Transport)?;
        let mut endpoint = Self { link, lanes: lanes(), sequences, peer: None };
        for class in 0..SLOTS.len() {
            let mut to_init = QueuePairAttribute::new();
            to_init
                .setup_state(QueuePairState::Init)
                .setup_pkey_index(0)
                .setup_port(endpoint.link.port.number)
                // For nudges, which write nothing, and for pages; what a key is needed for, there is no
                // key for unless memory is exposed. No reads and no atomics.
                .setup_access_flags(AccessFlags::RemoteWrite);
            endpoint.modify(class, &to_init, "initialise a queue pair")?;
            for slot in 0..received(class) {
                let posted = endpoint.link.post_receive(class, slot);
                posted.map_err(|error| endpoint.error("post a slot", &error))?;
            }
        }
        Ok(endpoint)
    }

    /// Device, port and GID, for people.
    pub(crate) fn location(&self) -> String {
        self.link.port.to_string()
    }

    fn error(&self, step: &'static str, error: &dyn std::error::Error) -> RdmaError {
        RdmaError::Step { step, place: self.location(), cause: causes(error) }
    }

    fn modify(
        &mut self,
        class: usize,
        attributes: &QueuePairAttribute,
        step: &'static str,
    ) -> Result<(), RdmaError> {
        let result = self.link.pairs[class].modify(attributes);
        result.map_err(|error| self.error(step, &error))
    }

    /// What the peer needs to reach this end.
    pub(crate) fn offer(&self) -> Offer {
        let Port { gid, lid, mtu, ethernet, .. } = &self.link.port;
        Offer {
            gid: gid.raw,
            lid: *lid,
            mtu: code(*mtu),
            ethernet: *ethernet,
            pairs: array::from_fn(|class: usize| Pair {
                number: self.link.pairs[class].qp_number(),
                sequence: self.sequences[class],
            }),
            slots: SLOTS,
            slot_bytes: SLOT_BYTES.map(|bytes| u32::try_from(bytes).expect("a slot is small")),
            memory: self.link.exposed(),
        }
    }

    /// Connects the queue pairs to the peer's. `lease` bounds how long a lost packet is sent again.
    pub(crate) fn connect(&mut self, theirs: &Offer, lease: Duration) -> Result<(), RdmaError> {
        let checked = theirs.check(&self.offer());
        checked.map_err(|what| RdmaError::BadOffer { place: self.location(), what })?;
        let gid = Gid { raw: theirs.gid };
        self.peer = Some(gid);
        if let Some(exposed) = theirs.memory {
            self.link.aim(exposed);
        }
        for class in 0..SLOTS.len() {
            let Port { number, gid_index, mtu, .. } = self.link.port;
            let mut route = AddressHandleAttribute::new();
            route
                .setup_dest_lid(theirs.lid)
                .setup_port(number)
                .setup_grh_src_gid_index(gid_index)
                .setup_grh_dest_gid(&gid)
                .setup_grh_hop_limit(HOPS);
            let mut to_receive = QueuePairAttribute::new();
            to_receive
                .setup_state(QueuePairState::ReadyToReceive)
                .setup_path_mtu(if code(mtu) <= theirs.mtu { mtu } else { size(theirs.mtu) })
                .setup_dest_qp_num(theirs.pairs[class].number)
                .setup_rq_psn(theirs.pairs[class].sequence)
                .setup_max_dest_read_atomic(0)
                .setup_min_rnr_timer(RECEIVER_TIMER)
                .setup_address_vector(&route);
            self.modify(class, &to_receive, "find the way to the peer")?;
            let mut to_send = QueuePairAttribute::new();
            to_send
                .setup_state(QueuePairState::ReadyToSend)
                .setup_sq_psn(self.sequences[class])
                .setup_timeout(timeout(lease))
                .setup_retry_cnt(RETRIES)
                .setup_rnr_retry(RECEIVER_RETRIES)
                .setup_max_read_atomic(0);
            self.modify(class, &to_send, "start a queue pair")?;
        }
        Ok(())
    }

    /// Sends the first message of each class, without data. The peer must be connected.
    pub(crate) fn greet(&mut self) -> Result<(), RdmaError> {
        for class in 0..SLOTS.len() {
            let posted = self.link.post_note(class, 0);
            posted.map_err(|error| self.error("send the first message", &error))?;
            self.lanes[class].note_posted();
        }
        Ok(())
    }

    /// Waits until the peer's first messages came and ours were received: the path works both ways.
    pub(crate) fn await_greeting(&mut self, deadline: Instant) -> Result<(), RdmaError> {
        let (mut sent, mut came) = ([false; Class::COUNT], [false; Class::COUNT]);
        let mut done = Vec::new();
        while (sent, came) != ([true; Class::COUNT], [true; Class::COUNT]) {
            if Instant::now() > deadline {
                return Err(self.unreachable("nothing came in time"));
            }
            let polled = self.link.poll(&mut done);
            polled.map_err(|error| self.error("read the completion queue", &error))?;
            if done.is_empty() {
                thread::sleep(Duration::from_micros(200));
            }
            for one in std::mem::take(&mut done) {
                match one {
                    Done::NoteSent { class } => {
                        self.lanes[class].note_done();
                        sent[class] = true;
                    }
                    Done::Received { class, slot, length: 0, .. } => {
                        came[class] = true;
                        let posted = self.link.post_receive(class, slot);
                        posted.map_err(|error| self.error("post a slot", &error))?;
                    }
                    // The peer may be through and send already.
                    Done::Received { class, slot, length, credits } => {
                        let lane = &mut self.lanes[class];
                        if !(lane.credit(credits) && lane.arrive(slot, length)) {
                            return Err(self.unreachable("it broke the slot rule"));
                        }
                    }
                    Done::Failed { cause, .. } => return Err(self.unreachable(&cause)),
                    Done::Sent { .. } | Done::Written | Done::Nudged { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn unreachable(&self, cause: &str) -> RdmaError {
        let peer = self.peer.map_or_else(String::new, |gid| Ipv6Addr::from(gid.raw).to_string());
        RdmaError::Unreachable { peer, place: self.location(), cause: cause.to_owned() }
    }

    /// Makes it a carrier; `life` is a socket to the peer's process.
    pub(crate) fn into_carrier(self, life: TcpStream) -> io::Result<RdmaCarrier> {
        RdmaCarrier::new(self.link, self.lanes, life)
    }
}

/// Random starting numbers of packets, 24 bits each: late packets of an earlier connection, and
/// strangers' guesses, do not fit.
fn sequences() -> io::Result<[u32; Class::COUNT]> {
    let mut bytes = [[0; 3]; Class::COUNT];
    File::open("/dev/urandom")?.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(|[low, middle, high]| u32::from_le_bytes([low, middle, high, 0])))
}

/// The code of the time without an acknowledgement after which a packet is sent again: with all
/// retries at least half the lease, so that a cable cut for a moment is survived, and a dead path is
/// known before the lease ends.
fn timeout(lease: Duration) -> u8 {
    let retries = u32::from(RETRIES) + 1;
    let enough = |code: &u8| TIMEOUT_UNIT * (1 << code) * retries >= lease / 2;
    (8..=20).find(enough).unwrap_or(20)
}

fn code(mtu: Mtu) -> u8 {
    match mtu {
        Mtu::Mtu256 => 1,
        Mtu::Mtu512 => 2,
        Mtu::Mtu1024 => 3,
        Mtu::Mtu2048 => 4,
        Mtu::Mtu4096 => 5,
    }
}

fn size(code: u8) -> Mtu {
    match code {
        0 | 1 => Mtu::Mtu256,
        2 => Mtu::Mtu512,
        3 => Mtu::Mtu1024,
        4 => Mtu::Mtu2048,
        _ => Mtu::Mtu4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_last_for_half_the_lease_and_not_much_longer() {
        for lease in [20, 500, 3000, 10_000].map(Duration::from_millis) {
            let all = TIMEOUT_UNIT * (1 << timeout(lease)) * 8;

            assert!(all >= lease / 2, "{lease:?}: {all:?}");
            assert!(all < lease + Duration::from_millis(10), "{lease:?}: {all:?}");
        }
    }

    #[test]
    fn packet_sizes_have_their_codes() {
        assert!((1..=5).all(|number| code(size(number)) == number));
    }
}
