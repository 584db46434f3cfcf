use super::super::testing::{Driver, Guest, INDIRECT, MEMORY_BYTES, NEXT, WRITE};
use super::*;
use crate::virtio::F_VERSION_1;
use proptest::prelude::*;
use std::sync::Mutex;

const BASE: u64 = 0x10_0000;
const DATA: u64 = 0x20_0000;
const TABLE: u64 = 0x30_0000;

fn ring(guest: &Guest, driver: &Driver) -> Ring {
    Ring::new(&driver.setup(), F_VERSION_1, Arc::clone(&guest.memory)).unwrap()
}

fn started() -> (Guest, Driver, Ring) {
    let guest = Guest::new();
    let driver = Driver::new(&guest, BASE, 16);
    let ring = ring(&guest, &driver);
    (guest, driver, ring)
}

#[test]
fn chains_direct_and_indirect_are_taken_apart() {
    let (guest, mut driver, mut ring) = started();
    guest.put(DATA, b"abcdefgh");
    let buffers = [(DATA, 3, false), (DATA + 3, 5, false), (DATA + 0x100, 4, true)];
    let heads = [driver.request(&buffers), driver.indirect(TABLE, &buffers)];
    for head in heads {
        let chain = ring.pop().unwrap().unwrap();
        assert_eq!((chain.head, chain.readable.len(), chain.writable.len()), (head, 8, 4));
        assert_eq!(ring.read_vec(&chain.readable, 1, 6).unwrap(), b"bcdefg");
        assert_eq!(ring.read_vec(&chain.readable, 4, 5), Err(RingError::Request));
        ring.write(&chain.writable, 1, b"xy").unwrap();
        assert_eq!(guest.get(DATA + 0x100, 4), b"\0xy\0");
        ring.push(chain.head, 3).unwrap();
    }
    assert_eq!(ring.pop(), Ok(None));
    assert_eq!(driver.used(), heads.map(|head| (u32::from(head), 3)));
}

/// Remembers all that it is told.
#[derive(Default)]
struct Told(Mutex<Vec<(u64, u64, Used)>>);

impl UsedMemory for Told {
    fn used(&self, address: u64, bytes: u64, what: Used) {
        self.0.lock().unwrap().push((address, bytes, what));
    }
}

#[test]
fn frame_of_a_request_is_told_apart_from_its_data() {
    let (guest, mut driver, ring) = started();
    let (told, setup) = (Arc::new(Told::default()), driver.setup());
    let frame = Frame { head: 16, tail: 1 };
    let mut ring = ring.with_used(&setup, Arc::<Told>::clone(&told), frame);
    let rings = told.0.lock().unwrap().split_off(0);
    assert_eq!(rings.len(), 3);
    assert!(rings.iter().all(|(_, _, what)| *what == Used::Data));
    driver.indirect(TABLE, &[(DATA, 16, false), (DATA + 64, 1, true)]);
    ring.pop().unwrap().unwrap();
    // The rings are told of each time.
    let mut of_table = told.0.lock().unwrap().split_off(0);
    assert_eq!(of_table.split_off(of_table.len() - 3), rings);
    assert_eq!(of_table.first(), Some(&(TABLE, 2 * 16, Used::Data)));
    assert!(of_table[1..].iter().all(|(_, _, what)| *what == Used::Frame));
    // A header in two pieces, the second with data behind it; a status behind data.
    driver.request(&[(DATA, 10, false), (DATA + 64, 100, false), (DATA + 256, 33, true)]);
    ring.pop().unwrap().unwrap();
    let (data, frame) = (Used::Data, Used::Frame);
    assert_eq!(
        told.0.lock().unwrap()[..5],
        [
            (DATA, 10, frame),
            (DATA + 64, 6, frame),
            (DATA + 70, 94, data),
            (DATA + 256, 32, data),
            (DATA + 288, 1, frame)
        ]
    );
    drop(guest);
}

#[test]
fn buffer_over_two_regions_of_memory_is_whole() {
    let (guest, mut driver, mut ring) = started();
    let middle = MEMORY_BYTES / 2;
    driver.request(&[(middle - 2, 4, true)]);
    let chain = ring.pop().unwrap().unwrap();
    ring.write(&chain.writable, 0, b"abcd").unwrap();
    assert_eq!(guest.get(middle - 2, 4), b"abcd");
}

#[test]
fn setups_that_cannot_be_are_refused_again() {
    let guest = Guest::new();
    let good = Driver::new(&guest, BASE, 16).setup();
    let refused = |setup: QueueSetup| {
        Ring::new(&setup, F_VERSION_1, Arc::clone(&guest.memory)).unwrap_err() == RingError::Setup
    };
    for size in [0, 3, 512] {
        assert!(refused(QueueSetup { size, ..good }));
    }
    for address in [BASE + 8, MEMORY_BYTES - 16, MEMORY_BYTES, u64::MAX - 15] {
        assert!(refused(QueueSetup { descriptors: address, ..good }));
    }
    for address in [0, BASE + 1, MEMORY_BYTES - 2, u64::MAX - 1] {
        assert!(refused(QueueSetup { driver_area: address, ..good }));
    }
    for address in [BASE + 2, MEMORY_BYTES - 4, u64::MAX - 3] {
        assert!(refused(QueueSetup { device_area: address, ..good }));
    }
}

#[test]
fn index_torn_or_beyond_the_table_breaks_the_ring() {
    let (_guest, driver, mut ring) = started();
    driver.store(BASE + 0x1_0002, 17);
    assert_eq!(ring.pop(), Err(RingError::Available));
    let (_guest, mut driver, mut ring) = started();
    driver.publish(16);
    assert_eq!(ring.pop(), Err(RingError::Available));
}

#[test]
fn chains_that_loop_end_nowhere_or_mix_their_order_break_the_ring() {
    let broken = |write: &dyn Fn(&Driver)| {
        let (_guest, mut driver, mut ring) = started();
        write(&driver);
        driver.publish(0);
        ring.pop().unwrap_err()
    };
    let chain = RingError::Chain;
    assert_eq!(broken(&|d| d.describe(BASE, 0, (DATA, 1), NEXT, 0)), chain, "loop");
    assert_eq!(broken(&|d| d.describe(BASE, 0, (DATA, 1), NEXT, 16)), chain, "nowhere");
    assert_eq!(
        broken(&|d| {
            d.describe(BASE, 0, (DATA, 1), WRITE | NEXT, 1);
            d.describe(BASE, 1, (DATA, 1), 0, 0);
        }),
        chain,
        "order"
    );
    assert_eq!(
        broken(&|d| {
            d.describe(BASE, 0, (DATA, u32::MAX >> 9), NEXT, 1);
            d.describe(BASE, 1, (DATA, u32::MAX), 0, 0);
        }),
        chain,
        "4 GiB"
    );
    for (buffer, what) in [((TABLE, 0), "empty"), ((TABLE, 8), "half"), ((MEMORY_BYTES, 16), "far")]
    {
        assert_eq!(broken(&|d| d.describe(BASE, 0, buffer, INDIRECT, 0)), chain, "{what}");
    }
    assert_eq!(
        broken(&|d| {
            d.describe(BASE, 0, (TABLE, 16), INDIRECT, 0);
            d.describe(TABLE, 0, (TABLE, 16), INDIRECT, 0);
        }),
        chain,
        "table in a table"
    );
    assert_eq!(
        broken(&|d| {
            d.describe(BASE, 0, (TABLE, 16 * 17), INDIRECT, 0);
            (0..17).for_each(|n| d.describe(TABLE, n, (DATA, 1), NEXT, n + 1));
        }),
        chain,
        "longer than the queue"
    );
}

#[test]
fn buffers_outside_memory_break_the_ring() {
    for (address, bytes) in
        [(MEMORY_BYTES, 1), (MEMORY_BYTES - 1, 2), (u64::MAX, 1), (u64::MAX - 4, 5), (0, u32::MAX)]
    {
        for write in [false, true] {
            let (_guest, mut driver, mut ring) = started();
            driver.request(&[(address, bytes, write)]);
            assert_eq!(ring.pop(), Err(RingError::Memory));
        }
    }
}

#[test]
fn chain_is_a_copy_that_the_guest_cannot_change() {
    let (guest, mut driver, mut ring) = started();
    let head = driver.request(&[(DATA, 4, true)]);
    let chain = ring.pop().unwrap().unwrap();
    driver.describe(BASE, head, (MEMORY_BYTES - 1, u32::MAX), WRITE, 0);
    ring.write(&chain.writable, 0, b"safe").unwrap();
    assert_eq!(guest.get(DATA, 4), b"safe");
}

#[test]
fn several_given_back_together_appear_at_once_and_count_for_the_event() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, BASE, 4);
    let features = F_VERSION_1 | F_EVENT_IDX;
    let mut ring = Ring::new(&driver.setup(), features, Arc::clone(&guest.memory)).unwrap();
    driver.want_interrupt_at(1);
    // Three times around the ring.
    for turn in 0..6_u16 {
        ring.push_together(&[(turn % 4, 10), (3, 20)]).unwrap();
        assert_eq!(driver.used(), [(u32::from(turn % 4), 10), (3, 20)]);
        // The second of the first two is at index 1.
        assert_eq!(ring.interrupt_due(), Ok(turn == 0));
        assert_eq!(ring.interrupt_due(), Ok(false), "asked twice");
    }
    ring.push_together(&[]).unwrap();
    assert!(driver.used().is_empty());
}

#[test]
fn wishes_of_both_sides_are_heard() {
    let (_guest, mut driver, mut ring) = started();
    ring.push(0, 0).unwrap();
    assert_eq!(ring.interrupt_due(), Ok(true));
    driver.store(BASE + 0x1_0000, 1);
    ring.push(0, 0).unwrap();
    assert_eq!(ring.interrupt_due(), Ok(false), "the driver polls");
    let guest = Guest::new();
    let mut polled = Driver::new(&guest, BASE, 16);
    let features = F_VERSION_1 | F_EVENT_IDX;
    let mut ring = Ring::new(&polled.setup(), features, Arc::clone(&guest.memory)).unwrap();
    assert_eq!((ring.listen(), polled.told_at()), (Ok(false), 0));
    polled.request(&[(DATA, 1, false)]);
    assert_eq!(ring.listen(), Ok(true), "it came before");
    ring.pop().unwrap().unwrap();
    assert_eq!((ring.listen(), polled.told_at()), (Ok(false), 1));
    driver.used();
}

proptest! {
    #[test]
    fn any_ring_gives_chains_within_memory_or_an_error(
        descriptors in prop::collection::vec(
            (prop_oneof![DATA..DATA + 64, Just(TABLE), any::<u64>()], prop_oneof![0_u32..64, any::<u32>()],
             0_u16..8, 0_u16..18), 16,
        ),
        inner in prop::collection::vec((DATA..DATA + 64, 0_u32..64, 0_u16..4, 0_u16..18), 16),
        heads in prop::collection::vec(0_u16..18, 1..16),
        index in prop_oneof![0_u16..20, any::<u16>()],
    ) {
        let (_guest, mut driver, mut ring) = started();
        for (at, (address, bytes, flags, next)) in (0..).zip(descriptors) {
            driver.describe(BASE, at, (address, bytes), flags, next);
        }
        for (at, (address, bytes, flags, next)) in (0..).zip(inner) {
            driver.describe(TABLE, at, (address, bytes), flags, next);
        }
        for head in heads {
            driver.publish(head);
        }
        driver.store(BASE + 0x1_0002, index);
        let mut popped = 0;
        while let Ok(Some(chain)) = ring.pop() {
            popped += 1;
            prop_assert!(popped <= 16 && chain.head < 16);
            for piece in chain.readable.pieces.iter().chain(&chain.writable.pieces) {
                let end = piece.address.0.checked_add(u64::from(piece.bytes));
                prop_assert!(piece.bytes == 0 || end.is_some_and(|end| end <= MEMORY_BYTES));
            }
            let bytes = usize::try_from(chain.writable.len().min(1 << 20)).unwrap();
            prop_assert!(ring.write(&chain.writable, 0, &vec![0; bytes]).is_ok());
        }
    }
}
