//! The calls of the kernel's tun driver (Linux, `Documentation/networking/tuntap.rst` and
//! `drivers/net/tun.c`) and of network interfaces, on names that have been checked.
#![expect(unsafe_code, reason = "ioctl, for which no kept crate has these calls")]
// UNSAFETY: each call gets the structure that its number stands for, alive during the call.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// `virtio_net_hdr_v1`: the header before every packet (virtio 1.3, 5.1.6).
pub(super) const HEADER_BYTES: usize = 12;

/// `ETHTOOL_GCHANNELS` and its structure (Linux, `include/uapi/linux/ethtool.h`).
const ETHTOOL_GET_CHANNELS: u32 = 0x3c;
const CHANNEL_FIELDS: usize = 9;
const COMBINED_COUNT: usize = 8;

/// A name that an interface may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceName(String);

impl InterfaceName {
    /// Nothing for what the kernel would refuse, or take for a pattern (`tap%d`).
    pub(super) fn new(name: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
        let good = (1..libc::IFNAMSIZ).contains(&name.len())
            && name.bytes().all(plain)
            && !matches!(name, "." | "..");
        good.then(|| Self(name.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// A request about this interface.
    fn request(&self) -> libc::ifreq {
        // SAFETY: `ifreq` is plain data, for which zeros are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.0.bytes()) {
            *to = from.cast_signed() as libc::c_char;
        }
        request
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn flags(bits: libc::c_int) -> libc::c_short {
    libc::c_short::try_from(bits).expect("flags of interfaces have 16 bits")
}

/// One queue of the tap. Opens the tap if it exists, else makes it until its last queue is closed.
pub(super) fn open_queue(name: &InterfaceName) -> io::Result<File> {
    let file = device()?;
    let mut request = name.request();
    request.ifr_ifru.ifru_flags =
        flags(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE);
    // SAFETY: `TUNSETIFF` reads and writes an `ifreq`.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    let bytes = libc::c_int::try_from(HEADER_BYTES).expect("12");
    // SAFETY: `TUNSETVNETHDRSZ` reads an `int`.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &bytes) })?;
    Ok(file)
}

/// The tun driver.
pub(super) fn device() -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")
}

/// Puts a queue in use, or out of use: then the kernel sends it nothing.
pub(super) fn use_queue(queue: &File, on: bool) -> io::Result<()> {
    let name = InterfaceName(String::new());
    let mut request = name.request();
    request.ifr_ifru.ifru_flags =
        flags(if on { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE });
    // SAFETY: `TUNSETQUEUE` reads an `ifreq`.
    checked(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETQUEUE, &mut request) })
}

/// Says what the reader of the tap finishes itself (`TUN_F_*`).
pub(super) fn set_offload(queue: &File, offload: u32) -> io::Result<()> {
    let offload = libc::c_ulong::from(offload);
    // SAFETY: `TUNSETOFFLOAD` takes its bits as the argument itself.
    checked(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, offload) })
}

/// Queues in use now, by whomever. Nothing where the kernel does not say.
pub(super) fn queues_in_use(socket: RawFd, name: &InterfaceName) -> Option<u32> {
    let mut channels = [0_u32; CHANNEL_FIELDS];
    channels[0] = ETHTOOL_GET_CHANNELS;
    let mut request = name.request();
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    // SAFETY: `SIOCETHTOOL` reads an `ifreq` that points to the structure of its command.
    checked(unsafe { libc::ioctl(socket, libc::SIOCETHTOOL, &mut request) }).ok()?;
    Some(channels[COMBINED_COUNT])
}

/// Largest payload of a frame in bytes.
pub(super) fn mtu(socket: RawFd, name: &InterfaceName) -> io::Result<u16> {
    let mut request = name.request();
    // SAFETY: `SIOCGIFMTU` reads and writes an `ifreq`.
    checked(unsafe { libc::ioctl(socket, libc::SIOCGIFMTU, &mut request) })?;
    // SAFETY: the call has filled this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Makes the interface carry packets.
pub(super) fn bring_up(socket: RawFd, name: &InterfaceName) -> io::Result<()> {
    let mut request = name.request();
    // SAFETY: `SIOCGIFFLAGS` reads and writes an `ifreq`.
    checked(unsafe { libc::ioctl(socket, libc::SIOCGIFFLAGS, &mut request) })?;
    // SAFETY: the call has filled this field.
    let now = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = now | flags(libc::IFF_UP);
    // SAFETY: `SIOCSIFFLAGS` reads an `ifreq`.
    checked(unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS, &mut request) })
}

/// For tests: the host's address on the interface, with a net of 255.255.255.0.
#[cfg(test)]
pub(super) fn set_address(socket: RawFd, name: &InterfaceName, address: [u8; 4]) -> io::Result<()> {
    for (call, address) in
        [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, [255, 255, 255, 0])]
    {
        let mut request = name.request();
        let mut data = [0; 14];
        for (to, from) in data[2..6].iter_mut().zip(address) {
            *to = from.cast_signed() as libc::c_char;
        }
        let family = libc::sa_family_t::try_from(libc::AF_INET).expect("2");
        request.ifr_ifru.ifru_addr = libc::sockaddr { sa_family: family, sa_data: data };
        // SAFETY: both calls read an `ifreq` with an address.
        checked(unsafe { libc::ioctl(socket, call, &mut request) })?;
    }
    Ok(())
}

/// For tests: keeps the tap when its last queue is closed, or lets it go.
#[cfg(test)]
pub(super) fn set_persistent(queue: &File, on: bool) -> io::Result<()> {
    // SAFETY: `TUNSETPERSIST` takes its value as the argument itself.
    checked(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(on)) })
}

/// For tests: a tap without several queues, as `ip tuntap add mode tap` makes it.
#[cfg(test)]
pub(super) fn open_single(name: &InterfaceName) -> io::Result<File> {
    let file = device()?;
    let mut request = name.request();
    request.ifr_ifru.ifru_flags = flags(libc::IFF_TAP | libc::IFF_NO_PI);
    // SAFETY: `TUNSETIFF` reads and writes an `ifreq`.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    Ok(file)
}
