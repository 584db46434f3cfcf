//! Network devices: a tap interface of one host, seen by front ends on all slices.

mod part;

use super::model::{
    BackEnd, FrontEnd, Lending, LentThing, Model, Moves, Opening, Places, QUEUES_MAX, Starting,
    Worker, unknown,
};
use super::open_error::OpenError;
use super::parts::{RealPart, Switch};
use super::remote::Remote;
use super::saved::FrontEndState;
use devices::back_end::tap::{TapNic, TapOptions};
use devices::back_end::{Nic, NicShape, SwitchNic};
use devices::delegate::{Exchange, ServeError};
use devices::virtio::net::{self, NetControl, NetDevice, NetPair, NetQueue};
use devices::virtio::{DeviceShape, Doorbell, QueueIndex, RingError};
use migrate::Invalid;
use part::NicPart;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use wire::{DeviceId, SliceId};

const WHAT: &str = "a network interface";

/// A tap interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Its name on the host of its slice.
    pub tap: String,
    /// Hardware address; made from the device's number if none.
    pub mac: Option<[u8; 6]>,
}

impl Model for NicSpec {
    type Shape = NicShape;

    const OPTION: &'static str = "net";
    const MOVES: Moves = Moves::ByName;
    const LENDING: Option<Lending> =
        Some(Lending { kind: "tap", forms: &["tap:NAME"], check: |_| Ok(()), open: lend });

    /// `TAP[,mac=MAC]`
    fn parse(parts: &[&str]) -> Result<Self, String> {
        let tap = parts.first().filter(|tap| !tap.is_empty()).ok_or("the tap is missing")?;
        let mut nic = Self { tap: (*tap).to_owned(), mac: None };
        for part in &parts[1..] {
            match part.split_once('=') {
                Some(("mac", value)) => nic.mac = Some(address(value)?),
                _ => return Err(unknown(part, "mac=, rings=, slice=, standby=")),
            }
        }
        Ok(nic)
    }

    fn names(&self) -> Vec<String> {
        vec![format!("tap:{}", self.tap)]
    }

    fn open(&self, opening: &Opening<'_>) -> Result<(NicShape, Arc<dyn BackEnd>), OpenError> {
        let part = opening.moves.then(|| NicPart::new(self, opening)).transpose()?;
        let tap = match &part {
            Some(part) => part.open_tap()?,
            None => {
                if let Some(LentThing::Interface(_)) = opening.lent {
                    let now = interface(&self.tap).map_err(|error| self.not_lent(error.into()))?;
                    self.check_lent(opening, now)?;
                }
                TapNic::open(&self.options(opening)).map_err(OpenError::of(WHAT))?
            }
        };
        let shape = tap.shape();
        let switch = Arc::new(SwitchNic::new(shape.clone(), Arc::new(tap)));
        if let Some(part) = &part {
            part.serve(&switch);
        }
        Ok((shape, Arc::new(OpenNic { switch, part: part.map(Arc::new) })))
    }

    fn named(&self, name: &str) -> Option<Self> {
        Some(Self { tap: name.to_owned(), mac: self.mac })
    }

    fn stand_by(&self, opening: &Opening<'_>) -> Result<(NicShape, Arc<dyn RealPart>), OpenError> {
        let part = NicPart::new(self, opening)?;
        Ok((part.look()?, Arc::new(part)))
    }

    fn carries_on(shape: &NicShape, of: &NicShape) -> Result<(), String> {
        if shape.mtu < of.mtu {
            return Err(format!(
                "its MTU is {}, and the guest has been told {}",
                shape.mtu, of.mtu
            ));
        }
        if shape.offloads & of.offloads != of.offloads {
            return Err("it lacks an offload that the guest may use".into());
        }
        let same = (shape.mac, shape.pairs) == (of.mac, of.pairs);
        if same { Ok(()) } else { Err("it has another address or other queues".into()) }
    }

    fn fits(&self, shape: &NicShape) -> bool {
        shape.pairs > 0 && shape.mac[0] & 1 == 0 && self.mac.is_none_or(|mac| mac == shape.mac)
    }

    /// A receive and a transmit queue for each vCPU, and the control queue behind.
    fn homes(shape: &NicShape, places: &Places) -> Vec<SliceId> {
        let pairs = usize::from(shape.pairs).min(QUEUES_MAX);
        let homes = places.vcpus.iter().take(pairs);
        homes.flat_map(|home| [*home, *home]).chain([places.boot()]).collect()
    }

    fn seen(shape: &NicShape, queues: u16) -> DeviceShape {
        net::shape(&NicShape { pairs: queues / 2, ..shape.clone() })
    }

    fn remote(shape: &NicShape, at: &Remote<'_>) -> Arc<dyn FrontEnd> {
        let nic = at.exchange.remote_nic(at.device, at.owner, shape.clone());
        Arc::new(NicFront::new(SwitchNic::new(shape.clone(), nic), at.queues))
    }
}

impl NicSpec {
    fn options(&self, opening: &Opening<'_>) -> TapOptions {
        let mac = self.mac.unwrap_or_else(|| own_address(opening.number));
        let pairs = u16::try_from(opening.vcpus).unwrap_or(u16::MAX);
        let (name, fence) = (self.tap.clone(), Arc::clone(opening.fence));
        TapOptions { name, mac, pairs, fence }
    }

    fn not_lent(&self, source: Box<dyn Error + Send + Sync>) -> OpenError {
        OpenError::Lend { what: format!("tap:{}", self.tap), source }
    }

    /// Whether the interface that has this number now is the one that is lent, if one is.
    fn check_lent(&self, opening: &Opening<'_>, now: u32) -> Result<(), OpenError> {
        match opening.lent {
            Some(LentThing::Interface(number)) if *number != now => {
                Err(self.not_lent("it is another interface than at the start".into()))
            }
            _ => Ok(()),
        }
    }
}

/// A hardware address of one device: six bytes in hexadecimal.
fn address(text: &str) -> Result<[u8; 6], String> {
    let error = || format!("mac={text:?} is no address of one device, such as 52:54:00:12:34:56");
    let byte = |part: &str| match part.len() {
        2 => u8::from_str_radix(part, 16).map_err(|_| error()),
        _ => Err(error()),
    };
    let bytes = text.split(':').map(byte).collect::<Result<Vec<_>, _>>()?;
    let mac: [u8; 6] = bytes.try_into().map_err(|_| error())?;
    // The lowest bit of the first byte marks a group.
    if mac[0] & 1 != 0 || mac == [0; 6] { Err(error()) } else { Ok(mac) }
}

/// A hardware address for a device without one: of one device, administered locally.
fn own_address(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [0x52, 0x54, 0x00, 0x7e, high, low]
}

/// An interface of the same name that is made later has another number.
fn lend(name: &str) -> Result<LentThing, Box<dyn Error + Send + Sync>> {
    Ok(LentThing::Interface(interface(name)?))
}

/// The number of an interface that is a tap.
fn interface(name: &str) -> io::Result<u32> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let folder = Path::new("/sys/class/net").join(name);
    let number = fs::read_to_string(folder.join("ifindex"))?;
    if !folder.join("tun_flags").exists() {
        return Err(io::Error::other("it is no tap interface"));
    }
    number.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Largest payload of a frame of an interface.
fn mtu(name: &str) -> io::Result<u16> {
    let text = fs::read_to_string(Path::new("/sys/class/net").join(name).join("mtu"))?;
    let mtu: u32 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

#[derive(Debug)]
struct OpenNic {
    switch: Arc<SwitchNic>,
    /// If it can move.
    part: Option<Arc<NicPart>>,
}

impl BackEnd for OpenNic {
    fn front_end(
        &self,
        exchange: &Exchange,
        device: DeviceId,
        queues: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError> {
        let shape = self.switch.shape();
        let nic = exchange.serve_nic(device, Arc::clone(&self.switch) as _)?;
        Ok(Arc::new(NicFront::new(SwitchNic::new(shape, nic), queues)))
    }

    fn part(&self) -> Option<Arc<dyn RealPart>> {
        self.part.clone().map(|part| part as _)
    }
}

/// A network device here or elsewhere.
#[derive(Debug)]
struct NicFront {
    switch: Arc<SwitchNic>,
    device: Arc<NetDevice>,
    pairs: u16,
}

impl NicFront {
    fn new(switch: SwitchNic, queues: u16) -> Self {
        let switch = Arc::new(switch);
        let device = NetDevice::new(Arc::clone(&switch) as _);
        Self { switch, device, pairs: queues / 2 }
    }
}

impl FrontEnd for NicFront {
    fn switch(&self) -> Option<Switch> {
        Some(Switch::Nic(Arc::clone(&self.switch)))
    }

    /// The queues of a pair are one worker's.
    fn bell(&self, queue: usize, before: &[Option<Doorbell>]) -> Option<Doorbell> {
        if queue % 2 == 1 { before.last().cloned().flatten() } else { None }
    }

    fn start(&self, features: u64) {
        self.device.connect(features);
    }

    fn worker(&self, at: &Starting<'_>) -> Worker {
        let features = at.activation.features;
        Ok(match NetQueue::of(at.queue, self.pairs, features) {
            Some(NetQueue::Receive(pair)) => {
                let transmit = QueueIndex(at.queue.0 + 1);
                let mut queues = at.activation.queues.iter();
                let transmit = queues.find(|(queue, _)| *queue == transmit);
                let (_, transmit) = transmit.ok_or(RingError::Setup)?;
                let (device, rings) = ((Arc::clone(&self.device), pair), (at.setup, transmit));
                let bell = at.bell.clone();
                Some(Box::new(NetPair::new(at.context, features, rings, device, bell)?))
            }
            Some(NetQueue::Control) => {
                let device = Arc::clone(&self.device);
                Some(Box::new(NetControl::new(at.context, features, at.setup, device)?))
            }
            Some(NetQueue::Transmit(_)) | None => None,
        })
    }

    fn stop(&self) {
        self.device.disconnect();
    }

    fn together(&self, queue: u16) -> Range<u16> {
        if queue / 2 < self.pairs { queue & !1..(queue & !1) + 2 } else { queue..queue + 1 }
    }

    fn hand_over(&self, queue: QueueIndex, features: u64) -> FrontEndState {
        let is_control = NetQueue::of(queue, self.pairs, features) == Some(NetQueue::Control);
        let state = is_control.then(|| self.device.save());
        self.device.hand_over(is_control);
        state.map_or(FrontEndState::Nothing, FrontEndState::Net)
    }

    fn take_over(
        &self,
        queue: QueueIndex,
        features: u64,
        state: FrontEndState,
    ) -> Result<(), Invalid> {
        match (NetQueue::of(queue, self.pairs, features), state) {
            (Some(NetQueue::Control), FrontEndState::Net(state)) => self.device.restore(state),
            (Some(NetQueue::Receive(_)), FrontEndState::Nothing) => Ok(()),
            _ => Err(Invalid::new("front_end", "not what goes with this queue")),
        }
    }

    fn restore(
        &self,
        queues: &[QueueIndex],
        features: u64,
        state: FrontEndState,
    ) -> Result<(), Invalid> {
        let is_control = |queue: &&QueueIndex| {
            NetQueue::of(**queue, self.pairs, features) == Some(NetQueue::Control)
        };
        match (queues.iter().find(is_control), state) {
            (Some(control), state) => self.take_over(*control, features, state),
            (None, FrontEndState::Net(_) | FrontEndState::Nothing) => Ok(()),
            (None, _) => Err(Invalid::new("front_end", "of another kind of device")),
        }
    }

    fn save(&self) -> FrontEndState {
        FrontEndState::Net(self.device.save())
    }
}

#[cfg(test)]
mod tests {
    use super::super::moves::torn;
    use super::*;
    use devices::delegate::Courier;
    use devices::saved::NetDeviceState;
    use wire::Epoch;

    /// The feature of several pairs (virtio 1.3, 5.1.3).
    const MULTIQUEUE: u64 = 1 << 22;

    #[derive(Debug)]
    struct Lost;

    impl Courier for Lost {
        fn send(&self, _: SliceId, _: Vec<u8>) -> bool {
            true
        }
    }

    /// A network of slice 0 with three pairs, on another slice.
    fn front() -> Arc<dyn FrontEnd> {
        let exchange = Exchange::new(SliceId(1), &[SliceId(0)], Epoch(1), Arc::new(Lost));
        let shape = NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 3, offloads: 0 };
        let (device, owner) = (DeviceId(0), SliceId(0));
        NicSpec::remote(&shape, &Remote { exchange: &exchange, device, owner, queues: 7 })
    }

    #[test]
    fn both_queues_of_a_pair_move_together() {
        let front = front();
        for (queues, one) in [
            (0..2, None),
            (0..1, Some(0)),
            (2..7, None),
            (3..7, Some(3)),
            (6..7, None),
            (4..5, Some(4)),
        ] {
            assert_eq!(torn(&*front, &queues), one, "{queues:?}");
        }
    }

    #[test]
    fn what_the_driver_has_said_moves_with_the_control_queue() {
        let (one, other) = (front(), front());
        let net = |pairs_in_use| FrontEndState::Net(NetDeviceState { pairs_in_use });
        one.start(MULTIQUEUE);
        other.start(MULTIQUEUE);
        let (receive, control) = (QueueIndex(2), QueueIndex(6));
        one.take_over(control, MULTIQUEUE, net(3)).unwrap();
        assert_eq!(one.hand_over(receive, MULTIQUEUE), FrontEndState::Nothing);
        assert_eq!(one.save(), net(3));
        let state = one.hand_over(control, MULTIQUEUE);
        assert_eq!((one.save(), &state), (net(1), &net(3)));
        other.take_over(control, MULTIQUEUE, state).unwrap();
        assert_eq!(other.save(), net(3));
        for (queue, state) in [
            (receive, net(3)),
            (control, FrontEndState::Nothing),
            (control, net(4)),
            (QueueIndex(3), FrontEndState::Nothing),
        ] {
            other.take_over(queue, MULTIQUEUE, state).unwrap_err();
        }
        other.take_over(receive, MULTIQUEUE, FrontEndState::Nothing).unwrap();
        // Without that feature the third queue is the one of control.
        one.take_over(receive, 0, net(1)).unwrap();
    }

    #[test]
    fn tap_that_lacks_what_the_guest_was_told_takes_no_place() {
        let of = NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 3, offloads: 6 };
        for shape in [of.clone(), NicShape { mtu: 9000, offloads: u64::MAX, ..of.clone() }] {
            NicSpec::carries_on(&shape, &of).unwrap();
        }
        for shape in [
            NicShape { mtu: 1400, ..of.clone() },
            NicShape { pairs: 2, ..of.clone() },
            NicShape { offloads: 5, ..of.clone() },
            NicShape { mac: [2, 0, 0, 0, 0, 2], ..of.clone() },
        ] {
            NicSpec::carries_on(&shape, &of).unwrap_err();
        }
    }

    #[test]
    fn parse_gives_tap_and_address() {
        let nic = NicSpec::parse(&["tap0", "mac=52:54:00:12:34:56"]).unwrap();
        let mac = Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(nic, NicSpec { tap: "tap0".into(), mac });
        for part in ["mac=1", "mac=01:00:00:00:00:00", "mac=0+:0:0:0:0:0", "ro"] {
            assert!(NicSpec::parse(&["t", part]).is_err(), "{part}");
        }
        assert!(NicSpec::parse(&[""]).is_err());
    }
}
