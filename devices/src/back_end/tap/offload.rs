//! Offloads: virtio's feature bits and the tun driver's.

/// Feature bits of a network device (virtio 1.3, 5.1.3).
mod feature {
    pub(super) const CSUM: u64 = 1 << 0;
    pub(super) const GUEST_CSUM: u64 = 1 << 1;
    pub(super) const GUEST_TSO4: u64 = 1 << 7;
    pub(super) const GUEST_TSO6: u64 = 1 << 8;
    pub(super) const GUEST_ECN: u64 = 1 << 9;
    pub(super) const GUEST_UFO: u64 = 1 << 10;
    pub(super) const HOST_TSO4: u64 = 1 << 11;
    pub(super) const HOST_TSO6: u64 = 1 << 12;
    pub(super) const HOST_ECN: u64 = 1 << 13;
    pub(super) const HOST_UFO: u64 = 1 << 14;
    pub(super) const GUEST_USO4: u64 = 1 << 54;
    pub(super) const GUEST_USO6: u64 = 1 << 55;
    pub(super) const HOST_USO: u64 = 1 << 56;
}

/// What every tap takes from a guest unfinished, and can give to it.
pub(super) const ALWAYS: u64 = feature::CSUM
    | feature::GUEST_CSUM
    | feature::GUEST_TSO4
    | feature::GUEST_TSO6
    | feature::GUEST_ECN
    | feature::GUEST_UFO
    | feature::HOST_TSO4
    | feature::HOST_TSO6
    | feature::HOST_ECN
    | feature::HOST_UFO;
/// What only newer kernels can (Linux 6.2).
pub(super) const SEGMENTED_UDP: u64 = feature::GUEST_USO4 | feature::GUEST_USO6 | feature::HOST_USO;

/// What the tap may leave to a guest that has agreed to these features (`TUN_F_*`). Segmentation
/// needs checksums, and ECN needs segmentation: what lacks its ground is left out.
pub(super) fn for_guest(features: u64) -> u32 {
    let has = |feature: u64| features & feature == feature;
    if !has(feature::GUEST_CSUM) {
        return 0;
    }
    let mut offload = libc::TUN_F_CSUM;
    for (feature, bit) in [
        (feature::GUEST_TSO4, libc::TUN_F_TSO4),
        (feature::GUEST_TSO6, libc::TUN_F_TSO6),
        (feature::GUEST_UFO, libc::TUN_F_UFO),
        (feature::GUEST_USO4 | feature::GUEST_USO6, libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ] {
        offload |= if has(feature) { bit } else { 0 };
    }
    if has(feature::GUEST_ECN) && offload & (libc::TUN_F_TSO4 | libc::TUN_F_TSO6) != 0 {
        offload |= libc::TUN_F_TSO_ECN;
    }
    offload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_without_checksums_gets_finished_packets() {
        assert_eq!(for_guest(feature::GUEST_TSO4 | feature::GUEST_ECN), 0);
    }

    #[test]
    fn ecn_needs_segmentation_and_half_of_segmented_udp_is_nothing() {
        let csum = feature::GUEST_CSUM;

        assert_eq!(for_guest(csum | feature::GUEST_ECN), libc::TUN_F_CSUM);
        assert_eq!(for_guest(csum | feature::GUEST_USO4), libc::TUN_F_CSUM);
        let segmented = for_guest(csum | feature::GUEST_TSO6 | feature::GUEST_ECN);
        assert_eq!(segmented, libc::TUN_F_CSUM | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN);
    }
}
