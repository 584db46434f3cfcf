//! Tables of small machines.

use super::*;
use proptest::prelude::*;

const TOPOLOGY: Topology = Topology { vcpus: 4, guest_tsc_khz: None, msi_ext_dest_id: false };

fn leaf(function: u32, registers: [u32; 4]) -> CpuidLeaf {
    let [eax, ebx, ecx, edx] = registers;
    CpuidLeaf { function, eax, ebx, ecx, edx, ..CpuidLeaf::default() }
}

fn subleaf(function: u32, index: u32, registers: [u32; 4]) -> CpuidLeaf {
    CpuidLeaf { index, indexed: true, ..leaf(function, registers) }
}

/// An AMD processor of family 0x17 with SSE, AVX and AVX-512 state.
fn host() -> Cpuid {
    Cpuid {
        leaves: vec![
            leaf(0, [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
            leaf(1, [0x0080_0f12, 0x0704_0800, 0xfffa_3203, 0xffff_ffff]),
            leaf(5, [64, 64, 3, 0]),
            leaf(6, [0x7f, 2, 9, 0]),
            subleaf(7, 0, [1, u32::MAX, u32::MAX, u32::MAX]),
            subleaf(7, 1, [0xff, 0, 0, 0]),
            leaf(0xa, [0x0730_0404, 0, 0, 0x603]),
            subleaf(0xb, 0, [1, 2, 0x100, 7]),
            subleaf(0xd, 0, [0xe7, 2688, 2688, 0]),
            subleaf(0xd, 1, [0xf, 2688, 0, 0]),
            subleaf(0xd, 2, [256, 576, 0, 0]),
            subleaf(0xd, 5, [64, 1088, 0, 0]),
            subleaf(0xd, 6, [512, 1152, 0, 0]),
            subleaf(0xd, 7, [1024, 1664, 0, 0]),
            leaf(0x15, [2, 216, 24_000_000, 0]),
            leaf(0x4000_0000, [0x4000_0010, 1, 2, 3]),
            leaf(0x4000_0001, [0x0100_7efb, 0, 0, 1]),
            leaf(0x4000_0010, [1, 1, 0, 0]),
            leaf(0x8000_0000, [0x8000_001f, 0, 0, 0]),
            leaf(0x8000_0001, [0, 0, u32::MAX, u32::MAX]),
            leaf(0x8000_0006, [0, 0, 0x0200_6140, 0x0080_9140]),
            leaf(0x8000_0007, [0, 0, 0, 0x6799]),
            leaf(0x8000_0008, [0x3030, 0xff, 0x700f, 0]),
            leaf(0x8000_000a, [1, 8, 0, 0xffff]),
            subleaf(0x8000_001d, 2, [0x4143, 0, 0, 0]),
            subleaf(0x8000_001d, 3, [0x1c163, 0, 0, 0]),
            leaf(0x8000_001e, [7, 0x101, 0x300, 0]),
        ],
    }
}

fn get(table: &Cpuid, function: u32, index: u32) -> [u32; 4] {
    table.get(function, index).map_or([0; 4], |leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
}

#[test]
fn table_survives_the_way_through_kvm_entries() {
    let table = host();
    assert_eq!(Cpuid::from_kvm(&table.to_kvm()), table);
}

#[test]
fn intersect_one_host_changes_nothing() {
    assert_eq!(intersect(&[host()]), Ok(host()));
}

#[test]
fn intersect_features_are_those_of_all() {
    let mut other = host();
    other.get_mut(1, 0).unwrap().ecx &= !(1 << 28);
    other.get_mut(7, 0).unwrap().ebx = 0x20;
    other.get_mut(0x8000_0008, 0).unwrap().eax = 0x3028;
    other.remove(&[0x8000_001e]);
    let both = intersect(&[host(), other.clone()]).unwrap();
    assert_eq!(get(&both, 1, 0)[2], 0xeffa_3203);
    assert_eq!(get(&both, 7, 0), [1, 0x20, u32::MAX, u32::MAX]);
    assert_eq!(get(&both, 0x8000_0008, 0)[0], 0x3028);
    assert_eq!(both.get(0x8000_001e, 0), None);
    let features = |table: &Cpuid| [get(table, 1, 0), get(table, 7, 0), get(table, 0xd, 0)];
    assert_eq!(features(&intersect(&[other, host()]).unwrap()), features(&both));
}

#[test]
fn intersect_partial_avx512_state_is_dropped_whole() {
    let mut other = host();
    other.get_mut(0xd, 0).unwrap().eax = 0x67;
    other.leaves.retain(|leaf| (leaf.function, leaf.index) != (0xd, 7));
    let both = intersect(&[host(), other]).unwrap();
    assert_eq!(get(&both, 0xd, 0), [7, 832, 832, 0]);
    assert_eq!(both.get(0xd, 5), None);
    assert_eq!(get(&both, 0xd, 2), [256, 576, 0, 0]);
}

#[test]
fn intersect_hosts_that_do_not_match_are_refused() {
    assert_eq!(intersect(&[]), Err(CpuidError::NoHost));
    let mut other = host();
    other.get_mut(0, 0).unwrap().ebx = 0x756e_6547;
    assert_eq!(intersect(&[host(), other]), Err(CpuidError::Vendor { host: 1 }));
    let mut other = host();
    other.get_mut(1, 0).unwrap().eax = 0x00a0_0f11;
    let family = CpuidError::Family { host: 2, family: 0x19, first: 0x17 };
    assert_eq!(intersect(&[host(), host(), other]), Err(family));
    let mut other = host();
    other.get_mut(0xd, 5).unwrap().ebx = 832;
    assert_eq!(intersect(&[host(), other]), Err(CpuidError::Xsave { host: 1, component: 5 }));
    let missing = CpuidError::Missing { host: 0, function: 0 };
    assert_eq!(intersect(&[Cpuid::default()]), Err(missing));
}

#[test]
fn vcpu_has_its_id_everywhere() {
    let table = for_vcpu(&host(), 0x103, &TOPOLOGY);
    assert_eq!(get(&table, 1, 0)[1] >> 24, 3);
    for index in 0..3 {
        assert_eq!(get(&table, 0xb, index)[3], 0x103);
    }
    assert_eq!(get(&table, 0xb, 1), [0, 1, 0x201, 0x103]);
    assert_eq!(get(&table, 0xb, 2), [0, 0, 2, 0x103]);
    assert_eq!(get(&table, 0x8000_001e, 0), [0x103, 0, 3, 0]);
    assert!(table.get(0x1f, 0).is_none());
}

#[test]
fn vcpu_shares_no_cache_and_no_package() {
    let table = for_vcpu(&host(), 1, &TOPOLOGY);
    assert_eq!(get(&table, 0x8000_001d, 2)[0], 0x143);
    assert_eq!(table.get(0x8000_001d, 3), None);
    assert_eq!(get(&table, 0x8000_0006, 0)[3], 0);
    assert_eq!(get(&table, 0x8000_0008, 0)[2], 0);
    assert_eq!(get(&table, 1, 0)[3] & 1 << 28, 0);
}

#[test]
fn vcpu_has_the_features_that_a_slice_needs() {
    let table = for_vcpu(&host(), 0, &TOPOLOGY);
    let ecx = get(&table, 1, 0)[2];
    assert_eq!(ecx & (1 << 21 | 1 << 24 | 1 << 31), 1 << 21 | 1 << 24 | 1 << 31);
    assert_eq!(get(&table, 6, 0), [4, 0, 0, 0]);
    assert_eq!(get(&table, 0x8000_0007, 0), [0, 0, 0, 1 << 8]);
    // Also where the host has none of these leaves.
    let table = for_vcpu(&Cpuid::default(), 0, &TOPOLOGY);
    assert_eq!((get(&table, 0, 0)[0], get(&table, 6, 0)[0]), (0xb, 4));
}

#[test]
fn vcpu_has_nothing_that_stays_on_one_host() {
    let table = for_vcpu(&host(), 0, &TOPOLOGY);
    assert_eq!(get(&table, 1, 0)[2] & (1 << 3 | 1 << 5), 0);
    assert_eq!(get(&table, 7, 0)[2] & 1 << 16, 0);
    assert_eq!(get(&table, 0xa, 0), [0; 4]);
    assert_eq!(get(&table, 0x8000_0001, 0)[2] & (1 << 2 | 1 << 23 | 1 << 28), 0);
    for function in [5, 0x15, 0x8000_000a, 0x4000_0010] {
        assert_eq!(table.get(function, 0), None, "{function:#x}");
    }
    // PCID stays.
    assert_ne!(get(&table, 1, 0)[2] & 1 << 17, 0);
}

#[test]
fn vcpu_sees_the_kvm_signature_without_features() {
    let table = for_vcpu(&host(), 0, &TOPOLOGY);
    let signature: Vec<u8> =
        get(&table, 0x4000_0000, 0)[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(signature, b"KVMKVMKVM\0\0\0");
    assert_eq!(get(&table, 0x4000_0000, 0)[0], 0x4000_0001);
    assert_eq!(get(&table, 0x4000_0001, 0), [0; 4]);
    let extended = Topology { msi_ext_dest_id: true, ..TOPOLOGY };
    assert_eq!(get(&for_vcpu(&host(), 0, &extended), 0x4000_0001, 0)[0], 1 << 15);
}

#[test]
fn vcpu_told_frequency_is_exact() {
    for khz in [1_000_u32, 2_599_987, 26_000_000] {
        let topology = Topology { guest_tsc_khz: Some(khz), ..TOPOLOGY };
        let table = for_vcpu(&host(), 0, &topology);
        let [eax, ebx, ecx, _] = get(&table, 0x15, 0);
        // As Linux computes it: in kHz and 32 bits.
        assert_eq!((ecx / 1000).checked_mul(ebx).unwrap() / eax, khz);
        assert_eq!(get(&table, 0x16, 0)[0], khz / 1000);
        assert!(get(&table, 0, 0)[0] >= 0x16);
    }
}

fn any_table() -> impl Strategy<Value = Cpuid> {
    let functions = prop::sample::select(vec![
        0_u32,
        1,
        4,
        6,
        7,
        0xb,
        0xd,
        0x1f,
        0x4000_0001,
        0x8000_0000,
        0x8000_0008,
        0x8000_001d,
    ]);
    let leaf = (functions, 0_u32..70, any::<bool>(), any::<[u32; 4]>()).prop_map(
        |(function, index, indexed, [eax, ebx, ecx, edx])| CpuidLeaf {
            function,
            index,
            indexed,
            eax,
            ebx,
            ecx,
            edx,
        },
    );
    prop::collection::vec(leaf, 0..30).prop_map(|leaves| Cpuid { leaves })
}

proptest! {
    #[test]
    fn any_tables_of_peers_never_panic(
        tables in prop::collection::vec(any_table(), 0..4),
        vcpu: u32,
        khz in any::<Option<u32>>(),
    ) {
        let mut whole = tables;
        for table in &mut whole {
            table.leaves.insert(0, leaf(0, [0xd, 1, 2, 3]));
            table.leaves.insert(1, leaf(1, [0x800f12, 0, 0, 0]));
        }
        let topology = Topology { guest_tsc_khz: khz, ..TOPOLOGY };
        if let Ok(table) = intersect(&whole) {
            let table = for_vcpu(&table, vcpu, &topology);
            prop_assert_eq!(get(&table, 0xb, 0)[3], vcpu);
        }
    }
}
