//! What devices are: what the bootstrap must know of back ends on other hosts before it can show them to the
//! guest, and where each queue of a device is at home.

use crate::slice::spec::{DeviceKind, DeviceSpec, Rings};
use devices::back_end::{DiskShape, NicShape};
use serde::{Deserialize, Serialize};
use wire::SliceId;

/// Most queues, or pairs, of a device. A vCPU beyond that shares the queue of another.
const QUEUES_MAX: usize = 64;

/// A device as the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum BackEndShape {
    /// A disk.
    Disk(DiskShape),
    /// A network device.
    Nic(NicShape),
    /// A source of randomness.
    Rng,
    /// A console.
    Console,
}

impl BackEndShape {
    /// Whether it is what was asked for. A companion's word is checked before it is shown to the guest.
    pub(crate) fn fits(&self, kind: &DeviceKind) -> bool {
        match (self, kind) {
            (Self::Disk(shape), DeviceKind::Disk { read_only, .. }) => {
                let block = shape.block_bytes;
                (512..=4096).contains(&block)
                    && block.is_power_of_two()
                    && shape.sectors > 0
                    && shape.sectors.checked_mul(512).is_some()
                    && (shape.read_only || !read_only)
            }
            (Self::Nic(shape), DeviceKind::Nic { mac, .. }) => {
                shape.pairs > 0 && shape.mac[0] & 1 == 0 && mac.is_none_or(|mac| mac == shape.mac)
            }
            (Self::Rng, DeviceKind::Rng) | (Self::Console, DeviceKind::Console { .. }) => true,
            _ => false,
        }
    }

    /// The home of each queue, by number. `places` has the slice of each vCPU.
    pub(crate) fn homes(&self, device: &DeviceSpec, places: &[SliceId]) -> Vec<SliceId> {
        let owner = SliceId(device.slice);
        let at = |vcpu: &SliceId| match device.rings {
            Rings::Bypass => *vcpu,
            Rings::Coherent => owner,
        };
        let boot = places.first().map_or(owner, at);
        match self {
            Self::Disk(_) => places.iter().take(QUEUES_MAX).map(at).collect(),
            Self::Nic(shape) => {
                let pairs = usize::from(shape.pairs).min(QUEUES_MAX);
                let homes = places.iter().take(pairs).map(at);
                // A receive and a transmit queue for each vCPU, and the control queue behind.
                homes.flat_map(|home| [home, home]).chain([boot]).collect()
            }
            Self::Rng => vec![boot],
            // The bytes of a console come from, and go to, the process with the terminal.
            Self::Console => vec![owner; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::spec::DiskFormat;

    const PLACES: [SliceId; 3] = [SliceId(0), SliceId(0), SliceId(1)];

    fn disk() -> BackEndShape {
        let (sectors, block_bytes, id) = (8, 512, [0; 20]);
        BackEndShape::Disk(DiskShape { sectors, block_bytes, read_only: false, discard: true, id })
    }

    fn spec(slice: u16, read_only: bool) -> DeviceSpec {
        let rings = Rings::Bypass;
        DeviceSpec {
            slice,
            rings,
            kind: DeviceKind::Disk { path: "/d".into(), format: DiskFormat::Raw, read_only },
        }
    }

    #[test]
    fn queues_are_at_home_with_their_vcpus_or_with_the_device() {
        let homes = disk().homes(&spec(2, false), &PLACES);
        assert_eq!(homes, PLACES);
        let homes = disk().homes(&DeviceSpec { rings: Rings::Coherent, ..spec(2, false) }, &PLACES);
        assert_eq!(homes, [SliceId(2); 3]);
    }

    #[test]
    fn pairs_of_a_nic_stay_together() {
        let shape = NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 2, offloads: 0 };
        let kind = DeviceKind::Nic { tap: "t".into(), mac: None };
        let places = [SliceId(0), SliceId(1), SliceId(2)];
        let homes = {
            let device = DeviceSpec { slice: 1, rings: Rings::Bypass, kind };
            BackEndShape::Nic(shape).homes(&device, &places)
        };
        assert_eq!(homes, [0, 0, 1, 1, 0].map(SliceId));
    }

    #[test]
    fn shape_that_was_not_asked_for_is_refused() {
        assert!(disk().fits(&spec(0, false).kind));
        assert!(!disk().fits(&spec(0, true).kind), "a disk that may be written is not read-only");
        assert!(!disk().fits(&DeviceKind::Rng));
        assert!(!BackEndShape::Rng.fits(&spec(0, false).kind));
    }
}
