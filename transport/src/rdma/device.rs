//! Which device, port and GID a slice uses.
//!
//! On Ethernet (RoCE) the port is the one whose RoCE v2 GID is the address that the slice already
//! talks to the peer from: then the route is known to work and the user need not name a device. An
//! InfiniBand port has no such address; there the first active one is taken.

use super::error::RdmaError;
use sideway::ibverbs::address::{Gid, GidType};
use sideway::ibverbs::device::{Device, DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{DeviceContext, LinkLayer, Mtu, PortState};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Which port is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The first active one.
    Any,
    /// The one with this address, or an InfiniBand one.
    Address(IpAddr),
}

impl Wanted {
    fn fits(&self, gid: &Gid) -> bool {
        let gid = Ipv6Addr::from(gid.raw);
        match self {
            Self::Any => true,
            Self::Address(IpAddr::V4(address)) => gid == address.to_ipv6_mapped(),
            Self::Address(IpAddr::V6(address)) => gid == *address,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("is active"),
            Self::Address(address) => write!(f, "is active and has the address {address}"),
        }
    }
}

/// An open device and the port of it that is used.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) context: Arc<DeviceContext>,
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) gid: Gid,
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
    pub(super) ethernet: bool,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = Ipv6Addr::from(self.gid.raw);
        write!(f, "device {} port {} GID {gid}", self.device, self.number)
    }
}

/// Whether this machine has an active RDMA port.
///
/// # Errors
/// Says why not, in one line.
pub fn available() -> Result<String, RdmaError> {
    find(&Wanted::Any).map(|port| port.to_string())
}

/// The first port that fits.
pub(super) fn find(wanted: &Wanted) -> Result<Port, RdmaError> {
    let devices = DeviceList::new().map_err(|error| RdmaError::Library(causes(&error)))?;
    let mut found = Vec::new();
    for device in &devices {
        match ports(&device, &mut found) {
            Ok(ports) => {
                if let Some(port) =
                    ports.into_iter().find(|port| wanted.fits(&port.gid) || !port.ethernet)
                {
                    return Ok(port);
                }
            }
            Err(cause) => found.push(format!("{}: {cause}", device.name())),
        }
    }
    let found = match found.len() {
        0 => String::from("this machine has no RDMA device"),
        _ => format!("there is {}", found.join(", ")),
    };
    Err(RdmaError::NoPort { wanted: wanted.to_string(), found })
}

/// The active ports of a device, once for every GID that can be used; all are noted in `found`.
fn ports(device: &Device<'_>, found: &mut Vec<String>) -> Result<Vec<Port>, String> {
    let context = device.open().map_err(|error| causes(&error))?;
    let count = context.query_device().map_err(|error| causes(&error))?.phys_port_cnt();
    let mut ports = Vec::new();
    for number in 1..=count {
        let attributes = context.query_port(number).map_err(|error| causes(&error))?;
        if attributes.port_state() != PortState::Active {
            found.push(format!("{} port {number}, which is not active", device.name()));
            continue;
        }
        let ethernet = attributes.link_layer() == LinkLayer::Ethernet;
        for index in 0..attributes.gid_tbl_len().clamp(0, 256) {
            let Ok(index) = u8::try_from(index) else { break };
            // An index without an entry is an error, not an empty entry.
            let Ok(entry) = context.query_gid_ex(number, u32::from(index)) else { continue };
            let good = !entry.gid().is_zero() && (!ethernet || entry.gid_type() == GidType::RoceV2);
            if good {
                let port = Port {
                    context: Arc::clone(&context),
                    device: device.name(),
                    number,
                    gid_index: index,
                    gid: entry.gid(),
                    lid: attributes.lid(),
                    mtu: attributes.active_mtu(),
                    ethernet,
                };
                found.push(port.to_string());
                ports.push(port);
            }
        }
    }
    // Addresses of a network come before the address that a port gives itself.
    ports.sort_by_key(|port| port.gid.is_unicast_link_local());
    Ok(ports)
}

/// An error with its causes, as one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // A transparent error repeats the text of its cause.
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}
