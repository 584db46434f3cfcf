//! The grammar of `--slice`: `local,cpus=N,memory=SIZE` or `ADDRESS:PORT,cpus=N,memory=SIZE`, either with `max-cpus=N`.

use crate::names::address;
use std::net::SocketAddr;
use std::str::FromStr;
use vm_file::{Size, ValueError};
use vmm::slice::SliceSpec;

/// One `--slice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceArgument {
    /// Where its companion listens; `None` is this process.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) spec: SliceSpec,
}

impl FromStr for SliceArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let address = match parts.next().unwrap_or_default() {
            "local" => None,
            place if !place.contains(':') => {
                return Err(format!("{place:?} is neither `local` nor ADDRESS:PORT"));
            }
            place => Some(address(place)?),
        };
        let (mut vcpus, mut most, mut memory) = (None, None, None);
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            let slot_taken = match key {
                "cpus" | "max-cpus" => {
                    let number: u32 =
                        value.parse().map_err(|_| format!("{key}={value:?} is no number"))?;
                    let slot = if key == "cpus" { &mut vcpus } else { &mut most };
                    slot.replace(number).is_some()
                }
                "memory" => {
                    let bytes = bytes(value).map_err(|error| format!("memory={error}"))?;
                    memory.replace(bytes).is_some()
                }
                _ => return Err(format!("{key:?} is none of cpus, max-cpus, memory")),
            };
            if slot_taken {
                return Err(format!("{key} is given twice"));
            }
        }
        let vcpus = vcpus.ok_or("cpus= is missing")?;
        let memory = memory.ok_or("memory= is missing")?;
        let spare_vcpus = most.unwrap_or(vcpus).checked_sub(vcpus);
        let spare_vcpus = spare_vcpus.ok_or("max-cpus= is less than cpus=, which it includes")?;
        Ok(Self { address, spec: SliceSpec { vcpus, spare_vcpus, memory } })
    }
}

/// Bytes of a size with unit: `256M`, `2G`, or plain bytes; as in the VM file.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map(Size::bytes).map_err(|error: ValueError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_of_remote_slice_gives_address_and_sizes() {
        let slice: SliceArgument = "10.9.0.2:7100,cpus=2,memory=256M".parse().unwrap();

        assert_eq!(slice.address, Some("10.9.0.2:7100".parse().unwrap()));
        assert_eq!(slice.spec, SliceSpec { vcpus: 2, spare_vcpus: 0, memory: 256 << 20 });
    }

    #[test]
    fn parse_with_more_vcpus_for_later_gives_their_number() {
        let slice: SliceArgument = "local,max-cpus=5,cpus=2,memory=256M".parse().unwrap();

        assert_eq!((slice.spec.vcpus, slice.spec.spare_vcpus), (2, 3));
    }

    #[test]
    fn parse_with_unknown_missing_or_double_keys_is_refused() {
        for text in [
            "local",
            "local,cpus=1",
            "local,cpus=1,memory=1M,disk=2",
            "local,cpus=1,cpus=2,memory=1M",
            "nowhere,cpus=1,memory=1M",
            "local,cpus=one,memory=1M",
            "local,cpus=2,max-cpus=1,memory=1M",
            "local,cpus=1,max-cpus=2,max-cpus=2,memory=1M",
            "local,cpus=1,memory=999999999999G",
        ] {
            assert!(text.parse::<SliceArgument>().is_err(), "{text}");
        }
    }
}
