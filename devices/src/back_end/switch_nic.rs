//! A network whose real part may go to another host: front ends keep it, and what is behind it changes.
//!
//! ```text
//!   connected --close--> packets are lost --put--> another network, which knows nothing --connect_anew--> connected
//! ```
//! It remembers what the front end has agreed on, and for how many packets it has room. Both are said again.

use super::{Nic, NicShape, PacketSink, PacketsDone};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the header before each packet (`virtio_net_hdr_v1`).
const HEADER_BYTES: usize = 12;
/// Shortest Ethernet frame, without its check sum.
const FRAME_BYTES: usize = 60;

/// Packets that each pair of the front end has room for.
type Rooms = Arc<Vec<AtomicU64>>;

struct State {
    behind: Option<Arc<dyn Nic>>,
    /// Features, pairs, and where packets go.
    agreed: Option<(u64, u16, Arc<dyn PacketSink>)>,
}

/// A network that may be behind another one at another time, of one shape.
pub struct SwitchNic {
    shape: NicShape,
    /// Held while the network behind is told something, so that it hears of all of it once.
    state: Mutex<State>,
    rooms: Rooms,
}

/// Counts what comes.
struct Inlet {
    rooms: Rooms,
    sink: Arc<dyn PacketSink>,
}

impl PacketSink for Inlet {
    fn packet(&self, pair: u16, bytes: Vec<u8>) {
        self.packets(pair, vec![bytes]);
    }

    fn packets(&self, pair: u16, packets: Vec<Vec<u8>>) {
        if let Some(room) = self.rooms.get(usize::from(pair)) {
            let count = packets.len() as u64;
            let less = |room: u64| Some(room.saturating_sub(count));
            let _ = room.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
        self.sink.packets(pair, packets);
    }
}

impl SwitchNic {
    /// What front ends see from now on as a network of this shape.
    #[must_use]
    pub fn new(shape: NicShape, nic: Arc<dyn Nic>) -> Self {
        let rooms = Arc::new((0..shape.pairs).map(|_| AtomicU64::new(0)).collect());
        Self { shape, state: Mutex::new(State { behind: Some(nic), agreed: None }), rooms }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes away what is behind, if anything is: no packet comes or goes any more.
    pub fn close(&self) {
        let behind = self.state().behind.take();
        if let Some(nic) = behind {
            nic.connect(0, 0, None);
        }
    }

    /// Puts another network behind it, which is told nothing yet.
    pub fn put(&self, nic: Arc<dyn Nic>) {
        self.close();
        self.state().behind = Some(nic);
    }

    /// Tells the network behind what the front end has agreed on, and for how many packets there is room.
    pub fn connect_anew(&self) {
        let state = self.state();
        let (Some(nic), Some((features, pairs, sink))) = (&state.behind, &state.agreed) else {
            return;
        };
        nic.connect(*features, *pairs, Some(self.inlet(sink)));
        for (pair, room) in (0..).zip(&*self.rooms) {
            let room = room.load(Ordering::Acquire);
            if room > 0 {
                nic.allow(pair, u32::try_from(room).unwrap_or(u32::MAX));
            }
        }
    }

    fn inlet(&self, sink: &Arc<dyn PacketSink>) -> Arc<dyn PacketSink> {
        Arc::new(Inlet { rooms: Arc::clone(&self.rooms), sink: Arc::clone(sink) })
    }

    /// Sends a frame by which bridges learn where the guest's address is now: a request of RARP (RFC 903) to everybody,
    /// as QEMU does after a migration.
    pub fn announce(&self) {
        let mac = self.shape.mac;
        let mut packet = vec![0; HEADER_BYTES];
        // To all; RARP; Ethernet and IPv4 with addresses of 6 and 4 bytes, request; whose address is to be found: its own.
        packet.extend([[0xff; 6], mac].as_flattened());
        packet.extend([0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        for _ in 0..2 {
            packet.extend(mac);
            packet.extend([0; 4]);
        }
        packet.resize(HEADER_BYTES + FRAME_BYTES, 0);
        self.transmit(0, vec![packet], Box::new(|| ()));
    }
}

impl Nic for SwitchNic {
    fn shape(&self) -> NicShape {
        self.shape.clone()
    }

    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        let mut state = self.state();
        // Allowances of before are void.
        self.rooms.iter().for_each(|room| room.store(0, Ordering::Release));
        if let Some(nic) = &state.behind {
            nic.connect(features, pairs, sink.as_ref().map(|sink| self.inlet(sink)));
        }
        state.agreed = sink.map(|sink| (features, pairs, sink));
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        let behind = self.state().behind.clone();
        match behind {
            Some(nic) => nic.transmit(pair, packets, done),
            None => done(),
        }
    }

    fn allow(&self, pair: u16, packets: u32) {
        let state = self.state();
        let Some(room) = self.rooms.get(usize::from(pair)) else { return };
        room.fetch_add(packets.into(), Ordering::AcqRel);
        if let Some(nic) = &state.behind {
            nic.allow(pair, packets);
        }
    }
}

impl fmt::Debug for SwitchNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchNic").field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back_end::cable;

    fn shape() -> NicShape {
        NicShape { mac: [2, 0, 0, 0, 0, 9], mtu: 1500, pairs: 1, offloads: 0 }
    }

    #[derive(Default)]
    struct Inbox(Mutex<Vec<Vec<u8>>>);

    impl PacketSink for Inbox {
        fn packet(&self, _: u16, bytes: Vec<u8>) {
            self.0.lock().unwrap().push(bytes);
        }
    }

    impl Inbox {
        fn take(&self) -> Vec<Vec<u8>> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    /// A far end of a cable that takes all, and its near end.
    fn end() -> (Arc<dyn Nic>, Arc<Inbox>, Arc<dyn Nic>) {
        let ((far, near), inbox) = (cable(&shape()), Arc::new(Inbox::default()));
        far.connect(0, 1, Some(Arc::clone(&inbox) as _));
        far.allow(0, 1000);
        (far, inbox, near)
    }

    fn send(nic: &dyn Nic, byte: u8) {
        nic.transmit(0, vec![vec![byte; 64]], Box::new(|| ()));
    }

    #[test]
    fn front_end_has_its_packets_from_the_network_behind_and_as_many_as_it_has_room_for() {
        let ((first, first_inbox, near), guest) = (end(), Arc::new(Inbox::default()));
        let switch = SwitchNic::new(shape(), near);
        switch.connect(7, 1, Some(Arc::clone(&guest) as _));
        switch.allow(0, 3);
        send(&*first, 1);
        assert_eq!(guest.take().len(), 1);

        switch.close();
        send(&*first, 2);
        send(&switch, 3);
        assert_eq!((guest.take().len(), first_inbox.take().len()), (0, 0), "they are lost");
        let (second, second_inbox, near) = end();
        switch.put(near);
        send(&*second, 4);
        assert_eq!(guest.take().len(), 0, "it has been told nothing");
        switch.connect_anew();
        // One packet of three had come; what waited in the cable came with the first word.
        (5..9).for_each(|byte| send(&*second, byte));
        assert_eq!(guest.take(), [5, 6].map(|byte| vec![byte; 64]));
        send(&switch, 9);
        assert_eq!(second_inbox.take(), [vec![9; 64]]);
        assert_eq!(first_inbox.take().len(), 0);
    }

    #[test]
    fn announcement_is_a_request_to_all_with_the_guests_address() {
        let (_far, inbox, near) = end();
        SwitchNic::new(shape(), near).announce();
        let packets = inbox.take();
        let frame = &packets[0][HEADER_BYTES..];
        assert_eq!((packets.len(), frame.len()), (1, FRAME_BYTES));
        assert_eq!(&frame[..14], &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 0x80, 0x35]);
        assert_eq!(&frame[14..22], &[0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!((&frame[22..28], &frame[32..38]), (&shape().mac[..], &shape().mac[..]));
    }
}
