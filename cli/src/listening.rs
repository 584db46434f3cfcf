//! Which companions wait for a bootstrap.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// For a host to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Those of these hosts where a companion waits. It listens until it has a VM, and only then. A connection that says nothing costs it
/// a line of its log.
pub(crate) fn answering(hosts: &[(u16, SocketAddr)]) -> BTreeSet<u16> {
    let answers = |address| TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok();
    thread::scope(|scope| {
        let ask = |(host, address): &(u16, SocketAddr)| {
            let (host, address) = (*host, *address);
            scope.spawn(move || answers(address).then_some(host))
        };
        let asked: Vec<_> = hosts.iter().map(ask).collect();
        // A thread that panics ends the process.
        asked.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    })
}
