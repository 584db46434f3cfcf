use super::super::QueueWorker;
use super::super::testing::{Driver, Guest};
use super::*;
use crate::saved::testing::bring_over;
use std::sync::Mutex;
use std::time::Instant;

const BASE: u64 = 0x10_0000;
const DATA: u64 = 0x30_0000;

#[test]
fn requests_are_filled_up_to_the_bound() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, BASE, 8);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let source: RandomSource = Arc::new(move |data| {
        data.fill(0x5a);
        seen.lock().unwrap().push(data.len());
    });
    let setup = driver.setup();
    let mut queue = RngQueue::new(&guest.context, Driver::FEATURES, &setup, source).unwrap();
    driver.request(&[(DATA, 3, true), (DATA + 16, 5, true)]);
    driver.request(&[(DATA + 0x1000, u32::MAX >> 10, true)]);
    assert!(!queue.service());
    assert_eq!(driver.used(), [(0, 8), (2, 4096)]);
    assert_eq!(*asked.lock().unwrap(), [8, 4096]);
    assert_eq!(guest.get(DATA, 4), [0x5a, 0x5a, 0x5a, 0]);
    assert_eq!(guest.get(DATA + 0x1000 + 4095, 2), [0x5a, 0]);
    assert_eq!(guest.interrupts(), 1);
    assert!(queue.stop(Instant::now()));
}

#[test]
fn worker_made_anew_goes_on_where_the_old_one_was() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, BASE, 8);
    let setup = driver.setup();
    let worker = |byte: u8| -> Box<dyn QueueWorker> {
        let source: RandomSource = Arc::new(move |data| data.fill(byte));
        Box::new(RngQueue::new(&guest.context, Driver::FEATURES, &setup, source).unwrap())
    };
    let (mut one, mut two) = (worker(1), worker(2));
    driver.request(&[(DATA, 3, true)]);
    assert!(!one.service());
    driver.request(&[(DATA + 16, 3, true)]);
    assert!(one.rest(Instant::now()));
    bring_over(&one, &mut two);
    assert!(!two.service());
    assert_eq!(driver.used(), [(0, 3), (1, 3)]);
    assert_eq!((guest.get(DATA, 3), guest.get(DATA + 16, 3)), (vec![1; 3], vec![2; 3]));
}
