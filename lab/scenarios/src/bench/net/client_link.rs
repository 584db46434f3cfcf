//! A client of the guest with a line of its own, slower than what joins the hosts.
//!
//! ```text
//!   namespace: client ─ link0 ═══ client0 ─ host 1 ─ tap0, tap1 ─ guest
//!                       (both ends let through so many MB/s)
//! ```
//! In the paper's cluster a client sits behind 1 Gbit/s of Ethernet, and InfiniBand of 56 Gbit/s joins the hosts. A
//! client on the host with the tap would have no line at all: what it asks for comes as fast as memory is copied, and
//! no network between hosts keeps up with that.
//!
//! The client has addresses of the taps' networks; the host answers for them to the guest, and for the guest to
//! them (proxy ARP), so the guest is told nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Command, Host};

/// Most bytes that a connection has on its way to the client. Less than [`QUEUE`] for all connections
/// together: nothing is lost, and no sender has to find out how fast the line is.
const WINDOW: u32 = 256 << 10;
/// Bytes that wait for the line.
const QUEUE: u32 = 2 << 20;
const NAME: &str = "tessera-client";
const LIMIT: Duration = Duration::from_secs(60);

/// What makes the line; `$1` is its rate in MB/s, the rest are networks as `tap0 192.168.77`.
const SCRIPT: &str = r#"set -e
rate=$1 name=$2 window=$3 queue=$4; shift 4
ip netns add "$name"
ip link add client0 type veth peer name link0 netns "$name"
ip -n "$name" link set lo up
ip -n "$name" link set link0 up
ip link set client0 up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv4/conf/client0/proxy_arp
while [ $# -gt 0 ]; do
    ip -n "$name" address add "$2.9/24" dev link0
    ip route add "$2.9/32" dev client0
    echo 1 >"/proc/sys/net/ipv4/conf/$1/proxy_arp"
    shift 2
done
ip netns exec "$name" sh -c "echo '4096 $window $window' >/proc/sys/net/ipv4/tcp_rmem"
for at in "-n $name qdisc add dev link0" "qdisc add dev client0"; do
    tc $at root tbf rate "${rate}mbps" burst 32kb limit "$queue"
done
"#;

/// A client's line on a host; it goes with this.
#[derive(Debug)]
pub(crate) struct ClientLink<'a> {
    host: Host<'a>,
}

impl<'a> ClientLink<'a> {
    /// Makes a line of so many MB/s to taps of this host, each with its network's first three numbers.
    pub(crate) fn make(host: Host<'a>, rate: u32, taps: &[(&str, &str)]) -> Result<Self> {
        let own = [rate.to_string(), NAME.to_owned(), WINDOW.to_string(), QUEUE.to_string()];
        let taps =
            taps.iter().flat_map(|(tap, network)| [(*tap).to_owned(), (*network).to_owned()]);
        let head = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned);
        let words = head.into_iter().chain(own).chain(taps);
        // Made before the script runs: what a script that fails has made goes too.
        let link = Self { host };
        link.host
            .output(&Command::new(words), LIMIT)
            .context("give the client a line of its own (`ip netns`, `tc` of iproute2)")?;
        Ok(link)
    }

    /// Words before a command that has it run at the far end of the line.
    pub(crate) fn prefix() -> [&'static str; 4] {
        ["ip", "netns", "exec", NAME]
    }
}

impl Drop for ClientLink<'_> {
    fn drop(&mut self) {
        // A host that is a machine goes as a whole; elsewhere the namespace takes both ends with it.
        let words = ["ip", "netns", "delete", NAME];
        drop(self.host.output(&Command::new(words), LIMIT));
    }
}
