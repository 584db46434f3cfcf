//! The grammar of `--disk`, `--net` and other devices:
//! `PATH[,readonly][,format=raw|qcow2]` or `TAP[,mac=MAC]`, each with `[,slice=K][,rings=WHERE]`, and
//! `stdio|file=PATH|socket=PATH[,slice=K]`.

use clap::Args;
use std::str::FromStr;
use vmm::slice::{ConsoleEnd, DeviceKind, DeviceSpec, DiskFormat, Rings};

#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// A disk: `PATH[,readonly][,format=raw|qcow2][,slice=K][,rings=WHERE]`, an image or block device on the
    /// host of slice K (0, this one, if not given). Its rings are read at the queue's vCPU (bypass, usual) or
    /// at the device (coherent: they travel as pages; slow, for comparison)
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<DiskArgument>,
    /// A network device: `TAP[,mac=MAC][,slice=K][,rings=WHERE]`, a tap interface on the host of slice K
    #[arg(long = "net", value_name = "NIC")]
    nics: Vec<NicArgument>,
    /// Give the guest a source of randomness
    #[arg(long)]
    rng: bool,
    /// A console (hvc0, hvc1, ...) beside the serial line: `stdio`, `file=PATH` (output only) or
    /// `socket=PATH` (one client at a time), each with `[,slice=K]`, on the host of slice K
    #[arg(long = "console", value_name = "CONSOLE")]
    consoles: Vec<ConsoleArgument>,
}

impl Devices {
    /// All devices: disks, then network devices, then the rest.
    pub(crate) fn specs(&self) -> Vec<DeviceSpec> {
        let disks = self.disks.iter().map(|disk| disk.0.clone());
        let nics = self.nics.iter().map(|nic| nic.0.clone());
        let rng = self.rng.then_some(DeviceSpec {
            slice: 0,
            rings: Rings::Bypass,
            kind: DeviceKind::Rng,
        });
        let consoles = self.consoles.iter().map(|console| console.0.clone());
        disks.chain(nics).chain(rng).chain(consoles).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DiskArgument(DeviceSpec);

#[derive(Clone, Debug, PartialEq, Eq)]
struct NicArgument(DeviceSpec);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ConsoleArgument(DeviceSpec);

fn slice(value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("slice={value:?} is no number of a slice"))
}

impl FromStr for DiskArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or("the path is missing")?;
        let (mut read_only, mut at, mut format) = (false, 0, DiskFormat::Raw);
        let mut rings = Rings::Bypass;
        for part in parts {
            match part.split_once('=') {
                None if part == "readonly" => read_only = true,
                Some(("slice", value)) => at = slice(value)?,
                Some(("rings", value)) => rings = place(value)?,
                Some(("format", "raw")) => format = DiskFormat::Raw,
                Some(("format", "qcow2")) => format = DiskFormat::Qcow2,
                _ => return Err(format!("{part:?} is none of readonly, format=, rings=, slice=")),
            }
        }
        let kind = DeviceKind::Disk { path: path.into(), format, read_only };
        Ok(Self(DeviceSpec { slice: at, rings, kind }))
    }
}

impl FromStr for NicArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let tap = parts.next().filter(|tap| !tap.is_empty()).ok_or("the tap is missing")?;
        let (mut mac, mut at, mut rings) = (None, 0, Rings::Bypass);
        for part in parts {
            match part.split_once('=') {
                Some(("mac", value)) => mac = Some(address(value)?),
                Some(("slice", value)) => at = slice(value)?,
                Some(("rings", value)) => rings = place(value)?,
                _ => return Err(format!("{part:?} is none of mac=, rings=, slice=")),
            }
        }
        let kind = DeviceKind::Nic { tap: tap.to_owned(), mac };
        Ok(Self(DeviceSpec { slice: at, rings, kind }))
    }
}

impl FromStr for ConsoleArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (end, rest) = text.split_once(',').map_or((text, None), |(end, at)| (end, Some(at)));
        let end = console_end(end)?;
        let at = match rest.map(|rest| (rest, rest.split_once('='))) {
            None => 0,
            Some((_, Some(("slice", value)))) => slice(value)?,
            Some((rest, _)) => return Err(format!("{rest:?} is not slice=")),
        };
        let kind = DeviceKind::Console { end };
        Ok(Self(DeviceSpec { slice: at, rings: Rings::Bypass, kind }))
    }
}

/// The other end of a console.
pub(crate) fn console_end(text: &str) -> Result<ConsoleEnd, String> {
    match text.split_once('=') {
        None if text == "stdio" => Ok(ConsoleEnd::Stdio),
        Some(("file" | "socket", "")) => Err("the path is missing".into()),
        Some(("file", path)) => Ok(ConsoleEnd::File { path: path.into() }),
        Some(("socket", path)) => Ok(ConsoleEnd::Socket { path: path.into() }),
        _ => Err(format!("{text:?} is none of stdio, file=PATH, socket=PATH")),
    }
}

/// Where rings are read.
fn place(value: &str) -> Result<Rings, String> {
    value.parse().map_err(|_| format!("rings={value:?} is neither bypass nor coherent"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_of_devices_gives_place_and_kind() {
        let disk: DiskArgument =
            "/a b.img,readonly,format=qcow2,slice=2,rings=coherent".parse().unwrap();
        let nic: NicArgument = "tap0,mac=52:54:00:12:34:56".parse().unwrap();

        let format = DiskFormat::Qcow2;
        let kind = DeviceKind::Disk { path: "/a b.img".into(), format, read_only: true };
        assert_eq!(disk.0, DeviceSpec { slice: 2, rings: Rings::Coherent, kind });
        let mac = Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(
            nic.0,
            DeviceSpec {
                slice: 0,
                rings: Rings::Bypass,
                kind: DeviceKind::Nic { tap: "tap0".into(), mac }
            }
        );
    }

    #[test]
    fn parse_of_consoles_gives_their_other_end() {
        let console = |slice, end| DeviceSpec {
            slice,
            rings: Rings::Bypass,
            kind: DeviceKind::Console { end },
        };
        let path = || "/a b=c".into();
        for (text, found) in [
            ("stdio", console(0, ConsoleEnd::Stdio)),
            ("file=/a b=c,slice=2", console(2, ConsoleEnd::File { path: path() })),
            ("socket=/a b=c", console(0, ConsoleEnd::Socket { path: path() })),
        ] {
            assert_eq!(text.parse::<ConsoleArgument>().unwrap().0, found);
        }
        for text in ["", "pty", "file=", "socket", "stdio,", "stdio,slice=x", "stdio,rings=bypass"]
        {
            assert!(text.parse::<ConsoleArgument>().is_err(), "{text}");
        }
    }

    #[test]
    fn parse_of_nonsense_is_refused() {
        for text in
            ["", ",readonly", "a,rw", "a,slice=x", "a,slice=70000", "a,format=vmdk", "a,rings=x"]
        {
            assert!(text.parse::<DiskArgument>().is_err(), "{text}");
        }
        for text in ["", "t,mac=1", "t,mac=01:00:00:00:00:00", "t,mac=0+:0:0:0:0:0", "t,ro"] {
            assert!(text.parse::<NicArgument>().is_err(), "{text}");
        }
    }
}
