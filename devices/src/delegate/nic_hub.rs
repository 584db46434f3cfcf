//! Who gets which packets of one network device, when its queue pairs live on several slices.
//!
//! ```text
//!  network --packet(pair)--> hub --the slice that last began to allow this pair--> sink here, or frames
//!
//!   pair: [no holder] --allow of A--> [A] --allow of B--> [A, B]: B --A connects anew--> [B]
//!                                                             \-----B connects anew--> [A]
//! ```
//! A slice holds a pair from its first allowance until it connects anew or leaves. A pair that moves to another slice has
//! two holders for a while, since what two slices say comes in any order: late allowances of the former place must not
//! take the pair back. Packets go to the slice that came last. In the end only the slice that serves the pair holds it.
//! The network itself is connected once for all.

use super::counters::add;
use super::outbound::{Outbound, fitting, message_bytes};
use crate::back_end::{Nic, PacketSink};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use wire::device::{Agreed, DeviceFrame, Part, join_packets};
use wire::{DeviceId, SliceId};

/// Where a client's packets go: to a sink here, or to its slice.
type Sink = Option<Arc<dyn PacketSink>>;

#[derive(Clone)]
struct Route {
    client: SliceId,
    connection: u32,
    sink: Sink,
}

/// A client that allows packets of a pair.
struct Holder {
    route: Route,
    /// What it has room for.
    credit: u64,
    /// Counts the holders of this pair.
    turn: u64,
}

#[derive(Default)]
struct PairState {
    holders: BTreeMap<SliceId, Holder>,
    /// Turn of the last one that came.
    turns: u64,
    /// What the network may still bring; never less than it was allowed and has not brought.
    below: u64,
}

impl PairState {
    /// Who gets its packets.
    fn holder(&mut self) -> Option<&mut Holder> {
        self.holders.values_mut().max_by_key(|holder| holder.turn)
    }

    /// What the network must be allowed so that it may bring all that its holder has room for.
    fn more(&mut self) -> u64 {
        let credit = self.holder().map_or(0, |holder| holder.credit);
        let more = credit.saturating_sub(self.below);
        self.below += more;
        more
    }
}

#[derive(Default)]
struct Control {
    /// Clients with their connection and what they agreed on.
    clients: BTreeMap<SliceId, (u32, Sink, Agreed)>,
    agreed: Option<Agreed>,
}

pub(super) struct NicHub {
    device: DeviceId,
    nic: Arc<dyn Nic>,
    outbound: Arc<Outbound>,
    /// Written while the network is connected anew, read while packets are allowed.
    control: RwLock<Control>,
    pairs: Vec<Mutex<PairState>>,
    /// Read while a packet is handed over, so that who disconnects can wait for it.
    delivery: RwLock<()>,
    last_tag: AtomicU64,
}

impl NicHub {
    pub(super) fn new(device: DeviceId, nic: Arc<dyn Nic>, outbound: Arc<Outbound>) -> Self {
        let pairs = (0..nic.shape().pairs).map(|_| Mutex::default()).collect();
        Self {
            device,
            nic,
            outbound,
            control: RwLock::default(),
            pairs,
            delivery: RwLock::default(),
            last_tag: AtomicU64::new(0),
        }
    }

    pub(super) fn nic(&self) -> &Arc<dyn Nic> {
        &self.nic
    }

    /// A client connects, or leaves when nothing is agreed. What it allowed before is void.
    pub(super) fn connect(
        self: &Arc<Self>,
        client: SliceId,
        connection: u32,
        agreed: Option<Agreed>,
        sink: Sink,
    ) {
        let mut control = self.control.write().unwrap_or_else(PoisonError::into_inner);
        for pair in &self.pairs {
            lock(pair).holders.remove(&client);
        }
        // Whoever found the old route has handed its packet over after this.
        drop(self.delivery.write());
        match agreed {
            Some(agreed) => control.clients.insert(client, (connection, sink, agreed)),
            None => control.clients.remove(&client),
        };
        // The slice with the control queue says how many pairs there are; the others know of one.
        let each = control.clients.values().map(|(_, _, agreed)| *agreed);
        let wanted = each.max_by_key(|agreed| agreed.pairs);
        let is_new = wanted != control.agreed;
        if is_new {
            control.agreed = wanted;
            match wanted {
                Some(Agreed { features, pairs }) => {
                    let sink: Arc<dyn PacketSink> = Arc::<Self>::clone(self);
                    self.nic.connect(features, pairs, Some(sink));
                }
                None => self.nic.connect(0, 0, None),
            }
        }
        for (index, pair) in (0_u16..).zip(&self.pairs) {
            let more = {
                let mut pair = lock(pair);
                if is_new {
                    // The network has forgotten what it was allowed.
                    pair.below = 0;
                }
                pair.more()
            };
            self.allow_below(index, more);
        }
    }

    /// A client has room for so many more packets of a pair.
    pub(super) fn allow(&self, client: SliceId, connection: u32, index: u16, packets: u32) {
        let control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        let known = control.clients.get(&client).filter(|known| known.0 == connection);
        let (Some((_, sink, _)), Some(pair)) = (known, self.pairs.get(usize::from(index))) else {
            return;
        };
        let more = {
            let mut pair = lock(pair);
            let turn = pair.turns + 1;
            let route = || Route { client, connection, sink: sink.clone() };
            let begin = || Holder { route: route(), credit: 0, turn };
            let holder = pair.holders.entry(client).or_insert_with(begin);
            holder.credit += u64::from(packets);
            pair.turns = turn;
            pair.more()
        };
        self.allow_below(index, more);
    }

    fn allow_below(&self, index: u16, packets: u64) {
        if packets > 0 {
            self.nic.allow(index, u32::try_from(packets).unwrap_or(u32::MAX));
        }
    }

    fn send(&self, route: &Route, pair: u16, packets: &[Vec<u8>]) {
        let mut rest = packets;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest));
            let list = join_packets(now);
            let tag = self.last_tag.fetch_add(1, Ordering::Relaxed);
            let total = message_bytes(&list);
            let part = Part { device: self.device, queue: pair, tag, offset: 0, total };
            let sent = self.outbound.message(route.client, &list, |offset, bytes| {
                let part = Part { offset, ..part };
                DeviceFrame::PacketsIn { part, connection: route.connection, bytes }
            });
            let counters = &self.outbound.counters;
            let counter = if sent { &counters.packets_in_served } else { &counters.dropped };
            add(counter, now.len() as u64);
            rest = later;
        }
    }
}

impl PacketSink for NicHub {
    fn packet(&self, pair: u16, bytes: Vec<u8>) {
        self.packets(pair, vec![bytes]);
    }

    fn packets(&self, pair: u16, mut packets: Vec<Vec<u8>>) {
        let _delivery = self.delivery.read().unwrap_or_else(PoisonError::into_inner);
        let count = packets.len() as u64;
        let route = self.pairs.get(usize::from(pair)).and_then(|pair| {
            let mut pair = lock(pair);
            pair.below = pair.below.saturating_sub(count);
            let holder = pair.holder()?;
            let taken = holder.credit.min(count);
            holder.credit -= taken;
            let route = (taken > 0).then(|| holder.route.clone())?;
            Some((route, taken))
        });
        let taken = route.as_ref().map_or(0, |(_, taken)| *taken);
        add(&self.outbound.counters.dropped, count - taken);
        packets.truncate(usize::try_from(taken).unwrap_or(usize::MAX));
        match route {
            Some((Route { sink: Some(sink), .. }, _)) => sink.packets(pair, packets),
            Some((route, _)) => self.send(&route, pair, &packets),
            None => {}
        }
    }
}

fn lock(pair: &Mutex<PairState>) -> MutexGuard<'_, PairState> {
    pair.lock().unwrap_or_else(PoisonError::into_inner)
}
