use super::super::QueueWorker;
use super::super::testing::{Driver, Guest};
use super::*;
use std::io;

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
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
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
    let paper = Paper::default();
    let output: ConsoleOutput = Arc::new(Mutex::new(paper.clone()));
    let setup = driver.setup();
    let mut queue = ConsoleTransmit::new(&guest.context, Driver::FEATURES, &setup, output).unwrap();
    guest.put(DATA, b"login: ");
    driver.request(&[(DATA, 3, false), (DATA + 3, 4, false)]);
    assert!(!queue.service());
    assert_eq!(*paper.0.lock().unwrap(), b"login: ");
    driver.request(&[(DATA, 12 << 20, false)]);
    assert!(!queue.service());
    assert_eq!(paper.0.lock().unwrap().len(), 7 + (1 << 20));
    assert_eq!(driver.used(), [(0, 0), (2, 0)]);
}
