//! The coherence codec: each message survives the wire, and no bytes make it panic.

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_wire::coherence::HEAD_BYTES;
use tessera_wire::coherence::{Level, Message};
use tessera_wire::{
    Access, Asked, BATCH_MAX, Batch, DecodeError, DirectoryEntry, Entry, Epoch, Gfn, HOME_MOVE_MAX,
    Half, Held, HolderKind, PAGE_SIZE, PageBody, RUN_MAX, SliceId, Table, VcpuId,
};

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::Write)]
}

fn kind() -> impl Strategy<Value = Table> {
    let half = prop_oneof![Just(Half::Kernel), Just(Half::User)];
    (1_u8..=4, half)
        .prop_map(|(level, half)| Table { level: Level::new(level).expect("1 to 4"), half })
}

fn entries(most: usize) -> impl Strategy<Value = Vec<Entry>> {
    let entry = (any::<u64>(), 0_u16..512, any::<u64>(), any::<u64>())
        .prop_map(|(gfn, index, old, new)| Entry { gfn: Gfn(gfn), index, old, new });
    vec(entry, 0..most)
}

fn about_a_page() -> impl Strategy<Value = Message> {
    let gfn = || any::<u64>().prop_map(Gfn);
    let slice = || any::<u16>().prop_map(SliceId);
    let table = || proptest::option::of(kind());
    let held = prop_oneof![Just(Held::Exclusive), Just(Held::Replica)];
    prop_oneof![
        (gfn(), access(), table()).prop_map(|(gfn, want, table)| Message::Get { gfn, want, table }),
        (gfn(), 1..=RUN_MAX, access()).prop_map(|(gfn, pages, want)| Message::GetRun {
            gfn,
            pages,
            want
        }),
        (gfn(), held, any::<bool>()).prop_map(|(gfn, held, asked)| Message::Confirm {
            gfn,
            held,
            asked
        }),
        (gfn(), slice(), access(), any::<u16>(), any::<bool>(), table()).prop_map(
            |(gfn, requester, keep, acks, owner, table)| Message::Fetch {
                gfn,
                requester,
                keep,
                acks,
                owner,
                table
            }
        ),
        (gfn(), slice(), any::<u16>()).prop_map(|(gfn, requester, upgrade)| Message::Invalidate {
            gfn,
            requester,
            upgrade
        }),
        (gfn(), any::<u16>(), table()).prop_map(|(gfn, acks, table)| Message::Grant {
            gfn,
            acks,
            table
        }),
        (gfn(), access(), any::<u16>(), any::<u32>(), table()).prop_map(
            |(gfn, access, acks, held_us, table)| Message::Data {
                gfn,
                access,
                acks,
                held_us,
                table
            }
        ),
        (gfn(), any::<u16>(), any::<u32>()).prop_map(|(gfn, upgrade, held_us)| Message::Acked {
            gfn,
            upgrade,
            held_us
        }),
        gfn().prop_map(|gfn| Message::Ready { gfn }),
        gfn().prop_map(|gfn| Message::Go { gfn }),
        gfn().prop_map(|gfn| Message::Demoted { gfn }),
        (gfn(), kind()).prop_map(|(gfn, table)| Message::Offer { gfn, table }),
    ]
}

fn about_a_home() -> impl Strategy<Value = Message> {
    let gfn = || any::<u64>().prop_map(Gfn);
    let pages = || 1..=HOME_MOVE_MAX;
    let kind_of = prop_oneof![
        Just(HolderKind::Shared),
        Just(HolderKind::Exclusive),
        Just(HolderKind::ExclusiveGrant),
        Just(HolderKind::Replicated)
    ];
    let entry = (any::<u64>(), kind_of, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |(holders, kind, [widely_shared, never_replica], late_runs)| DirectoryEntry {
            holders,
            kind,
            widely_shared,
            never_replica,
            late_runs,
        },
    );
    let want = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let asked = prop_oneof![
        (want, proptest::option::of(kind()), any::<bool>())
            .prop_map(|(want, table, late_run)| Asked::Get { want, table, late_run }),
        Just(Asked::Demote)
    ];
    prop_oneof![
        (gfn(), pages(), any::<u16>(), any::<u32>()).prop_map(|(gfn, pages, to, placement)| {
            Message::MoveHome { gfn, pages, to: SliceId(to), placement: Epoch(placement) }
        }),
        (gfn(), pages(), any::<u16>(), any::<u32>()).prop_map(|(gfn, pages, to, placement)| {
            Message::HomeLeaves { gfn, pages, to: SliceId(to), placement: Epoch(placement) }
        }),
        gfn().prop_map(|gfn| Message::HomeAwaited { gfn }),
        (gfn(), any::<u16>(), asked).prop_map(|(gfn, requester, asked)| {
            Message::HomeRequest { gfn, requester: SliceId(requester), asked }
        }),
        (gfn(), vec(entry, 1..=usize::from(HOME_MOVE_MAX)))
            .prop_map(|(gfn, entries)| Message::HomeEntries { gfn, entries }),
        (gfn(), pages()).prop_map(|(gfn, pages)| Message::HomeMoved { gfn, pages }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let gfn = || any::<u64>().prop_map(Gfn);
    prop_oneof![
        4 => about_a_page(),
        1 => (any::<u64>(), entries(1024))
            .prop_map(|(flush, entries)| Message::Diff { flush, entries }),
        2 => about_a_home(),
        1 => any::<u64>().prop_map(|flush| Message::DiffDone { flush }),
        1 => (gfn(), any::<bool>()).prop_map(|(gfn, conflict)| Message::Demote { gfn, conflict }),
        1 => (gfn(), any::<u16>(), any::<bool>())
            .prop_map(|(gfn, heir, dropped)| Message::Leave { gfn, heir: SliceId(heir), dropped }),
        1 => (gfn(), entries(512)).prop_map(|(gfn, entries)| Message::Left { gfn, entries }),
        1 => (any::<u32>(), gfn())
            .prop_map(|(vcpu, gfn)| Message::Root { vcpu: VcpuId(vcpu), gfn }),
    ]
}

fn encode(message: &Message, epoch: Epoch, page: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(epoch, page.is_some(), &mut bytes);
    bytes.extend_from_slice(page.unwrap_or_default());
    bytes
}

proptest! {
    #[test]
    fn decode_of_encoded_batch_gives_it_back(
        first in 0..u64::MAX / 2,
        pages in 1..=BATCH_MAX,
        bits in any::<u64>(),
        held_us in any::<u32>(),
        write in any::<bool>(),
        remote_written in any::<bool>(),
        fill in any::<u8>(),
    ) {
        let batch = Batch {
            epoch: Epoch(3),
            first: Gfn(first),
            pages,
            access: if write { Access::Write } else { Access::Read },
            held_us,
            bodies: bits & (u64::MAX >> (64 - pages)),
            remote_written,
        };
        let mut bytes = Vec::new();
        batch.encode(&mut bytes);
        let carried = if remote_written { 0 } else { batch.bodies.count_ones() };
        let count = usize::try_from(carried).unwrap();
        prop_assert_eq!(
            Batch::decode_head(&bytes, bytes.len() + count * PAGE_SIZE),
            Ok(Some(batch))
        );
        bytes.extend(vec![fill; count * PAGE_SIZE]);

        let (back, bodies) = Batch::decode(&bytes).unwrap().unwrap();
        prop_assert_eq!(back, batch);
        let seen: Vec<_> = back.messages(bodies).collect();
        prop_assert_eq!(seen.len(), usize::from(pages));
        let whole = [fill; PAGE_SIZE];
        for ((at, gfn), (message, body)) in (0..).zip(first..).zip(seen) {
            prop_assert_eq!(message.gfn(), Some(Gfn(gfn)));
            let there = batch.bodies & 1 << at != 0;
            let full = if remote_written { PageBody::RemoteWritten } else { PageBody::Bytes(&whole) };
            prop_assert_eq!(body, if there { full } else { PageBody::Zero });
        }

        bytes.push(0);
        prop_assert!(Batch::decode(&bytes).is_err());
    }

    #[test]
    fn decode_of_arbitrary_batch_never_panics(
        bytes in vec(any::<u8>(), 0..3 * PAGE_SIZE),
        count in 0..70_u16,
        bits in 0..8_u64,
    ) {
        let mut bytes: Vec<u8> = std::iter::once(19).chain(bytes).collect();
        for (at, byte) in (18..).zip(count.to_le_bytes()).chain((24..).zip(bits.to_le_bytes())) {
            bytes.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        // What is decoded stands for that many messages, and encodes to the same head.
        if let Ok(Some((batch, bodies))) = Batch::decode(&bytes) {
            prop_assert_eq!(batch.messages(bodies).count(), usize::from(batch.pages));
        }
    }

    #[test]
    fn decode_of_encoded_message_gives_it_back(
        message in message(),
        epoch in any::<u32>().prop_map(Epoch),
        fill in proptest::option::of(any::<u8>()),
    ) {
        let page = fill.filter(|_| message.has_body()).map(|fill| vec![fill; PAGE_SIZE]);
        let bytes = encode(&message, epoch, page.as_deref());

        let (epoch_back, message_back, body) = Message::decode(&bytes).unwrap();

        prop_assert_eq!(epoch_back, epoch);
        prop_assert_eq!(&message_back, &message);
        let expected = message.has_body().then_some(match &page {
            Some(page) => PageBody::Bytes(page),
            None => PageBody::Zero,
        });
        prop_assert_eq!(body, expected);
    }

    #[test]
    fn remotely_written_page_is_said_by_data_alone(
        message in message(),
        epoch in any::<u32>().prop_map(Epoch),
    ) {
        let mut bytes = encode(&message, epoch, None);
        // The flags are the fourth byte.
        bytes[3] |= 16;
        if matches!(message, Message::Data { .. }) {
            let mut said = Vec::new();
            message.encode_remote_written(epoch, &mut said);
            prop_assert_eq!(&said, &bytes);
            prop_assert_eq!(Message::decode(&said), Ok((epoch, message, Some(PageBody::RemoteWritten))));
        } else {
            let refused = matches!(Message::decode(&bytes), Err(DecodeError::Field { field: "remote_written", .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn decode_of_arbitrary_bytes_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn decode_of_arbitrary_head_of_a_known_kind_never_panics(
        kind in 0_u8..26,
        rest in vec(any::<u8>(), HEAD_BYTES - 1..HEAD_BYTES + 100),
    ) {
        let bytes: Vec<u8> = std::iter::once(kind).chain(rest).collect();

        // What is decoded can be encoded, and is the same message again.
        if let Ok((epoch, message, body)) = Message::decode(&bytes) {
            let page = match body {
                Some(PageBody::Bytes(page)) => Some(page),
                _ => None,
            };
            let mut again = encode(&message, epoch, page);
            if body == Some(PageBody::RemoteWritten) {
                again.clear();
                message.encode_remote_written(epoch, &mut again);
            }
            prop_assert_eq!(Message::decode(&again), Ok((epoch, message, body)));
        }
    }

    #[test]
    fn decode_of_cut_message_is_an_error(message in message(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&message, Epoch(1), None);
        let cut = cut.index(bytes.len());

        let result = Message::decode(&bytes[..cut]);

        prop_assert!(matches!(result, Err(DecodeError::Length { .. })), "{result:?}");
    }

    #[test]
    fn decode_of_message_with_a_tail_is_an_error(message in message(), tail in 1_usize..64) {
        let mut bytes = encode(&message, Epoch(1), None);
        bytes.resize(bytes.len() + tail, 0);

        prop_assert!(Message::decode(&bytes).is_err());
    }
}
