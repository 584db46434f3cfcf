//! A tap that may be closed on this host while another one of the same network is opened on another host.
//!
//! ```text
//!   open --close--> closed: packets are lost --reopen: it has not moved--> open, connected as before
//!   closed --open--> opened aside --take_over--> open, for all slices, and announced
//!                         \--let_go--> closed
//! ```

use super::super::lock;
use super::super::model::Opening;
use super::super::open_error::OpenError;
use super::super::parts::{ClosedPart, PartError, RealPart, Switch};
use super::super::remote::Remote;
use super::{Model, NicSpec, WHAT, interface, mtu};
use devices::back_end::tap::{TapNic, TapOptions};
use devices::back_end::{Nic, NicShape, SwitchNic};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The way to a tap of this host.
#[derive(Debug)]
pub(super) struct NicPart {
    options: TapOptions,
    /// Another interface of the same name has another.
    number: u32,
    /// Behind the server of this slice while the tap is the VM's.
    served: Mutex<Option<Arc<SwitchNic>>>,
    /// Opened, and not yet the network of the VM.
    aside: Mutex<Option<TapNic>>,
}

impl NicPart {
    /// Finds the interface, which is there already. Nothing is sent or received.
    pub(super) fn new(spec: &NicSpec, opening: &Opening<'_>) -> Result<Self, OpenError> {
        let number = interface(&spec.tap).map_err(|error| {
            OpenError::of(WHAT)(format!(
                "{} must exist before, as standby= is said: {error}",
                spec.tap
            ))
        })?;
        spec.check_lent(opening, number)?;
        let options = spec.options(opening);
        Ok(Self { options, number, served: Mutex::default(), aside: Mutex::default() })
    }

    pub(super) fn open_tap(&self) -> Result<TapNic, OpenError> {
        let now = interface(&self.options.name).map_err(OpenError::of(WHAT))?;
        if now != self.number {
            return Err(OpenError::of(WHAT)("it is another interface than at the start"));
        }
        TapNic::open(&self.options).map_err(OpenError::of(WHAT))
    }

    /// The tap is the VM's from now on, behind this.
    pub(super) fn serve(&self, switch: &Arc<SwitchNic>) {
        *lock(&self.served) = Some(Arc::clone(switch));
    }

    /// What it would be. Its offloads show when it is open.
    pub(super) fn look(&self) -> Result<NicShape, OpenError> {
        let TapOptions { name, mac, pairs, .. } = &self.options;
        let mtu = mtu(name).map_err(OpenError::of(WHAT))?;
        Ok(NicShape { mac: *mac, mtu, pairs: *pairs, offloads: u64::MAX })
    }

    fn served(&self) -> Result<Arc<SwitchNic>, PartError> {
        lock(&self.served).clone().ok_or(PartError::Turn)
    }
}

impl RealPart for NicPart {
    /// What network it is in cannot be told from here.
    fn sample(&self) -> Result<String, PartError> {
        Ok(String::new())
    }

    fn check(&self) -> Result<(), PartError> {
        self.look()?;
        Ok(())
    }

    fn close(&self, _: &Switch, _: Duration) -> Result<ClosedPart, PartError> {
        let served = self.served()?;
        served.close();
        Ok(ClosedPart::Nic(served.shape()))
    }

    fn open(&self, closed: &ClosedPart, _: Duration) -> Result<(), PartError> {
        let ClosedPart::Nic(shape) = closed else {
            return Err(PartError::Differs("it is no network".into()));
        };
        let tap = self.open_tap()?;
        NicSpec::carries_on(&tap.shape(), shape).map_err(PartError::Differs)?;
        *lock(&self.aside) = Some(tap);
        Ok(())
    }

    fn let_go(&self) {
        drop(lock(&self.aside).take());
    }

    fn reopen(&self, _: &Switch) -> Result<(), PartError> {
        let (served, tap) = (self.served()?, self.open_tap()?);
        served.put(Arc::new(tap));
        served.connect_anew();
        Ok(())
    }

    fn take_over(&self, switch: &Switch, at: &Remote<'_>) -> Result<(), PartError> {
        let (Switch::Nic(front), Some(tap)) = (switch, lock(&self.aside).take()) else {
            return Err(PartError::Turn);
        };
        let served = Arc::new(SwitchNic::new(front.shape(), Arc::new(tap)));
        front.put(at.exchange.serve_nic(at.device, Arc::clone(&served) as _)?);
        self.serve(&served);
        Ok(())
    }

    fn hand_over(&self) {
        drop(lock(&self.served).take());
    }

    fn announce(&self) {
        if let Ok(served) = self.served() {
            served.announce();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devices::back_end::image::OnFull;
    use devices::back_end::{PacketSink, PacketsDone};
    use devices::delegate::{Courier, Exchange};
    use std::process::Command;
    use std::time::Instant;
    use wire::{DeviceId, Epoch, SliceId};

    const DEVICE: DeviceId = DeviceId(0);
    const LIMIT: Duration = Duration::from_secs(30);
    const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Taps in a bridge of this machine, which go away with it.
    struct Bridge(String);

    fn ip(words: &str) -> bool {
        let run = Command::new("ip").args(words.split(' ')).output();
        run.is_ok_and(|output| output.status.success())
    }

    impl Bridge {
        /// None where they cannot be made.
        fn new(taps: &[&str]) -> Option<Self> {
            let bridge = Self(format!("br{}", std::process::id()));
            let name = &bridge.0;
            let made =
                ip(&format!("link add {name} type bridge")) && ip(&format!("link set {name} up"));
            let all = made && taps.iter().all(|tap| bridge.add(&bridge.tap(tap)));
            if !all {
                needs::leave_out("this process may not make a bridge with taps");
            }
            all.then_some(bridge)
        }

        fn tap(&self, tap: &str) -> String {
            format!("{}{tap}", self.0)
        }

        fn add(&self, tap: &str) -> bool {
            ip(&format!("tuntap add dev {tap} mode tap multi_queue vnet_hdr"))
                && ip(&format!("link set {tap} master {} up", self.0))
        }
    }

    impl Drop for Bridge {
        fn drop(&mut self) {
            for tap in ["a", "b", "c"] {
                ip(&format!("link del {}", self.tap(tap)));
            }
            ip(&format!("link del {}", self.0));
        }
    }

    #[derive(Default)]
    struct Inbox(Mutex<Vec<Vec<u8>>>);

    impl PacketSink for Inbox {
        fn packet(&self, _: u16, bytes: Vec<u8>) {
            lock(&self.0).push(bytes);
        }
    }

    impl Inbox {
        /// Of this kind, from this address.
        fn has(&self, from: [u8; 6], kind: u16) -> bool {
            let is_it =
                |packet: &Vec<u8>| packet[18..24] == from && packet[24..26] == kind.to_be_bytes();
            lock(&self.0).iter().any(is_it)
        }
    }

    /// Sends to an address until it is there: a bridge takes its time to forward.
    fn reaches(nic: &dyn Nic, (from, to): ([u8; 6], [u8; 6]), kind: u16, inbox: &Inbox) {
        let end = Instant::now() + LIMIT;
        let mut packet = vec![0; 12];
        packet.extend([to, from].as_flattened());
        packet.extend(kind.to_be_bytes());
        packet.resize(80, 0);
        while !inbox.has(from, kind) {
            assert!(Instant::now() < end, "{kind:#x} does not come");
            let done: PacketsDone = Box::new(|| ());
            nic.transmit(0, vec![packet.clone()], done);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[derive(Debug)]
    struct Nowhere;

    impl Courier for Nowhere {
        fn send(&self, _: SliceId, _: Vec<u8>) -> bool {
            true
        }
    }

    fn part(tap: &str, mac: [u8; 6]) -> Result<NicPart, OpenError> {
        let (fence, panicked) = (Arc::default(), Arc::default());
        let (number, vcpus, on_full) = (0, 1, OnFull::Report);
        let (fence, panicked) = (&fence, &panicked);
        let (moves, lent) = (true, None);
        let (writer, restored, cloned) = (None, None, false);
        let opening = Opening {
            number,
            vcpus,
            fence,
            on_full,
            panicked,
            moves,
            lent,
            writer,
            restored,
            cloned,
        };
        NicPart::new(&NicSpec { tap: tap.to_owned(), mac: Some(mac) }, &opening)
    }

    /// A tap that is served, with its front end, which has room for packets.
    fn served(part: &NicPart) -> (Arc<SwitchNic>, Arc<Inbox>) {
        let tap = part.open_tap().unwrap();
        let (switch, inbox) =
            (Arc::new(SwitchNic::new(tap.shape(), Arc::new(tap))), Arc::default());
        part.serve(&switch);
        switch.connect(0, 1, Some(Arc::clone(&inbox) as _));
        switch.allow(0, 1 << 20);
        (switch, inbox)
    }

    #[test]
    fn network_goes_to_another_tap_of_its_bridge_which_hears_of_it_or_comes_back() {
        let Some(bridge) = Bridge::new(&["a", "b", "c"]) else { return };
        let [here, there] = ["a", "b"].map(|tap| part(&bridge.tap(tap), GUEST).unwrap());
        let other = part(&bridge.tap("c"), PEER).unwrap();
        let (peer, heard) = served(&other);
        let (front, guest) = served(&here);
        reaches(&*front, (GUEST, PEER), 0x88b5, &heard);
        reaches(&*peer, (PEER, GUEST), 0x88b5, &guest);
        there.check().unwrap();

        // It is closed, cannot be opened there, and comes back.
        let switch = Switch::Nic(Arc::clone(&front));
        let closed = here.close(&switch, LIMIT).unwrap();
        let ClosedPart::Nic(shape) = &closed else { panic!("a network") };
        let larger = ClosedPart::Nic(NicShape { mtu: shape.mtu + 1, ..shape.clone() });
        assert!(matches!(there.open(&larger, LIMIT), Err(PartError::Differs(_))));
        here.reopen(&switch).unwrap();
        reaches(&*front, (GUEST, PEER), 0x88b6, &heard);
        reaches(&*peer, (PEER, GUEST), 0x88b6, &guest);

        // It goes there. The front end of that slice is another one.
        let closed = here.close(&switch, LIMIT).unwrap();
        there.open(&closed, LIMIT).unwrap();
        here.hand_over();
        let (local, others) = (SliceId(1), [SliceId(0)]);
        let exchange = Exchange::new(local, &others, Epoch(1), Arc::new(Nowhere));
        let remote = exchange.remote_nic(DEVICE, SliceId(0), shape.clone());
        let (front, guest) =
            (Arc::new(SwitchNic::new(shape.clone(), remote)), Arc::<Inbox>::default());
        front.connect(0, 1, Some(Arc::clone(&guest) as _));
        front.allow(0, 1 << 20);
        let at = Remote { exchange: &exchange, device: DEVICE, owner: local, queues: 3 };
        there.take_over(&Switch::Nic(Arc::clone(&front)), &at).unwrap();
        front.connect_anew();
        there.announce();
        let end = Instant::now() + LIMIT;
        while !heard.has(GUEST, 0x8035) {
            assert!(Instant::now() < end, "nothing is announced");
            there.announce();
            std::thread::sleep(Duration::from_millis(5));
        }
        reaches(&*peer, (PEER, GUEST), 0x88b7, &guest);
        reaches(&*front, (GUEST, PEER), 0x88b7, &heard);
        assert!(matches!(here.close(&switch, LIMIT), Err(PartError::Turn)), "it is there");
    }

    #[test]
    fn standby_that_is_no_tap_is_refused() {
        for name in ["lo", "not-there", "../lo", ""] {
            assert!(part(name, GUEST).is_err(), "{name}");
        }
    }
}
