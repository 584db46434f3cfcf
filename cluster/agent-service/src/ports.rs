//! Where companions listen: ports of a range, each of one slice that may run.

use crate::order::listens;
use agent::decide::Journal;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use thiserror::Error;

/// An address, and ports of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// By which other hosts reach this one.
    pub address: IpAddr,
    /// For one companion each.
    pub range: RangeInclusive<u16>,
}

/// There is no port.
#[derive(Debug, Error)]
#[error("{address} has none of the ports {first} to {last} free")]
pub(crate) struct NoPort {
    address: IpAddr,
    first: u16,
    last: u16,
}

impl Ports {
    /// A port that no slice has, and where nobody else listens now. Somebody may before the companion does: then it ends, and says so.
    pub(crate) fn choose(&self, journal: &Journal) -> Result<SocketAddr, NoPort> {
        let running = journal.slices.values().filter(|slice| slice.may_run());
        let taken: BTreeSet<SocketAddr> = running.filter_map(|it| listens(&it.order)).collect();
        let all = self.range.clone().map(|port| SocketAddr::new(self.address, port));
        let mut free = all.filter(|address| !taken.contains(address));
        let none = || NoPort {
            address: self.address,
            first: *self.range.start(),
            last: *self.range.end(),
        };
        free.find(|address| TcpListener::bind(address).is_ok()).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::decide::{End, Generation, Order, Phase, Slice, SliceName, Token, Vm};
    use scheduler::Resources;

    /// Three ports, of which the middle one is somebody else's.
    fn three() -> (Ports, TcpListener, u16) {
        loop {
            let middle = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = middle.local_addr().unwrap().port();
            let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
            if free(port - 1) && free(port + 1) {
                let address = "127.0.0.1".parse().unwrap();
                return (Ports { address, range: port - 1..=port + 1 }, middle, port);
            }
        }
    }

    #[test]
    fn port_of_somebody_else_is_passed_over() {
        let (ports, _middle, middle) = three();
        let mut journal = Journal::default();
        let mut listening = |number: u16, port: u16, phase: Phase| {
            let words = vec!["companion".into(), format!("--listen=127.0.0.1:{port}")];
            let order = Order { resources: Resources::NONE, words };
            let (generation, token) = (Generation(1), Token(number.into()));
            let slice = Slice { generation, order, token, phase, stop: None };
            journal.slices.insert(SliceName { vm: Vm(1), number }, slice);
            ports.choose(&journal).ok().map(|address| address.port())
        };
        assert_eq!(listening(1, 1, Phase::Starting), Some(middle - 1));
        assert_eq!(listening(2, middle - 1, Phase::Starting), Some(middle + 1));
        assert_eq!(listening(3, middle + 1, Phase::Starting), None);
        assert_eq!(listening(2, middle - 1, Phase::Ended(End::Unseen)), Some(middle - 1));
    }
}
