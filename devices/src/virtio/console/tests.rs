use super::super::QueueWorker;
use super::super::testing::{Driver, Guest};
use super::*;
use crate::saved::testing::{bring_over, damage, through_bytes};
use proptest::prelude::*;
use std::io;
use std::time::Instant;

const BASE: u64 = 0x10_0000;
const DATA: u64 = 0x30_0000;

#[test]
fn input_waits_for_buffers_and_is_bounded() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, BASE, 8);
    let input = ConsoleInput::new(Doorbell::new().unwrap());
    let (setup, pushed) = (driver.setup(), input.clone());
    let mut queue = ConsoleReceive::new(&guest.context, Driver::FEATURES, &setup, input).unwrap();
    assert_eq!(pushed.push(b"hello, guest"), 12);
    assert!(!queue.service());
    driver.request(&[(DATA, 5, true)]);
    driver.request(&[(DATA + 16, 100, true)]);
    assert!(!queue.service());
    assert_eq!(driver.used(), [(0, 5), (1, 7)]);
    assert_eq!(
        (guest.get(DATA, 6), guest.get(DATA + 16, 8)),
        (b"hello\0".to_vec(), b", guest\0".to_vec())
    );
    assert_eq!(pushed.push(&[0; 5000]), 4096);
    assert_eq!(pushed.push(&[0; 10]), 0);
    assert_eq!(guest.interrupts(), 1);
}

/// Output that others can look at.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn output_is_written_in_order_and_never_endless() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, BASE, 8);
    let printed = SharedBuffer::default();
    let output: ConsoleOutput = Arc::new(Mutex::new(printed.clone()));
    let setup = driver.setup();
    let mut queue = ConsoleTransmit::new(&guest.context, Driver::FEATURES, &setup, output).unwrap();
    guest.put(DATA, b"login: ");
    driver.request(&[(DATA, 3, false), (DATA + 3, 4, false)]);
    assert!(!queue.service());
    assert_eq!(*printed.0.lock().unwrap(), b"login: ");
    driver.request(&[(DATA, 12 << 20, false)]);
    assert!(!queue.service());
    assert_eq!(printed.0.lock().unwrap().len(), 7 + (1 << 20));
    assert_eq!(driver.used(), [(0, 0), (2, 0)]);
}

#[test]
fn input_that_is_too_long_is_refused() {
    let fresh = || ConsoleInput::new(Doorbell::new().unwrap());
    let mut input = fresh();
    input.push(b"ls");
    let state = ConsoleInputState { waiting: vec![0; INPUT_BYTES_MAX + 1] };
    input.restore(state).unwrap_err();
    assert_eq!(input.save().waiting, b"ls", "nothing has changed");
    input.push(&[1; INPUT_BYTES_MAX]);
    bring_over(&input, &mut fresh());
    damage(&ConsoleInputState { waiting: vec![3, 4] }, 0x40, |state| {
        let mut input = fresh();
        input.restore(state).unwrap();
        assert_eq!(input.push(&[0; INPUT_BYTES_MAX]) + input.waiting(), 2 * INPUT_BYTES_MAX - 2);
    });
}

proptest! {
    #[test]
    fn input_arrives_once_and_in_order_however_often_the_console_moves(
        steps in prop::collection::vec((0_u8..4, 1_usize..200), 0..60),
    ) {
        let guest = Guest::new();
        let mut driver = Driver::new(&guest, BASE, 64);
        let (setup, features) = (driver.setup(), Driver::FEATURES);
        let worker = |input: &ConsoleInput| {
            ConsoleReceive::new(&guest.context, features, &setup, input.clone()).unwrap()
        };
        let mut input = ConsoleInput::new(Doorbell::new().unwrap());
        let mut queue = worker(&input);
        let (mut sent, mut buffers) = (Vec::new(), 0_u64);
        for (kind, count) in steps {
            match kind {
                0 => {
                    let bytes: Vec<u8> =
                        (sent.len()..sent.len() + count).map(|at| at.to_le_bytes()[0]).collect();
                    let taken = input.push(&bytes);
                    sent.extend(&bytes[..taken]);
                }
                1 if buffers < 64 => {
                    let bytes = u32::try_from(count).unwrap();
                    driver.request(&[(DATA + 0x1000 * buffers, bytes, true)]);
                    buffers += 1;
                }
                3 => {
                    prop_assert!(queue.rest(Instant::now()));
                    let state = through_bytes(&queue.save());
                    let mut other = ConsoleInput::new(Doorbell::new().unwrap());
                    bring_over(&input, &mut other);
                    input = other;
                    queue = worker(&input);
                    queue.restore(state).unwrap();
                }
                _ => while queue.service() {},
            }
        }
        while queue.service() {}
        let mut got = Vec::new();
        for (head, bytes) in driver.used() {
            let at = DATA + 0x1000 * u64::from(head);
            got.extend(guest.get(at, usize::try_from(bytes).unwrap()));
        }
        got.extend(input.save().waiting);
        prop_assert_eq!(got, sent);
    }
}
