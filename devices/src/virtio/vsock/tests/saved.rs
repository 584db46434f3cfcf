//! Sockets at rest, and in another process.

use super::*;
use crate::saved::testing::{bring_over, damage, through_bytes};
use crate::virtio::{F_EVENT_IDX, WorkerState};
use migrate::Saved;
use std::time::Instant;

const EVENTS: u64 = 0x30_0000;
const EVENT: u64 = 0x38_0000;

/// What a worker says at rest.
fn rested(worker: &mut impl QueueWorker) -> WorkerState {
    assert!(worker.rest(Instant::now()), "nothing is under way");
    through_bytes(&worker.save())
}

/// A device that goes on where this one was.
fn moved(from: &Vsock) -> Vsock {
    let mut to = Vsock::new(5).unwrap();
    bring_over(from, &mut to);
    to
}

impl Rig {
    /// The guest goes on with a device that is new.
    fn move_over(&mut self) {
        let states = (rested(&mut self.bringing), rested(&mut self.taking));
        let vsock = moved(&self.vsock);
        let (context, features) = (&self.guest.context, Driver::FEATURES);
        let (setup, receive) = (self.receive.setup(), Receive::new(&vsock));
        self.bringing = VsockReceive::new(context, features, &setup, receive).unwrap();
        let (setup, transmit) = (self.transmit.setup(), Transmit::new(&vsock));
        self.taking = VsockTransmit::new(context, features, &setup, transmit).unwrap();
        QueueWorker::restore(&mut self.bringing, states.0).unwrap();
        QueueWorker::restore(&mut self.taking, states.1).unwrap();
        vsock.set_active(true);
        self.vsock = vsock;
    }
}

/// A driver of queue 2 with its worker.
fn events(guest: &Guest, vsock: &Vsock) -> (Driver, VsockEvents) {
    events_with(guest, vsock, Driver::FEATURES)
}

fn events_with(guest: &Guest, vsock: &Vsock, features: u64) -> (Driver, VsockEvents) {
    let driver = Driver::new(guest, EVENTS, 8);
    let (setup, events) = (driver.setup(), Events::new(vsock));
    let worker = VsockEvents::new(&guest.context, features, &setup, events).unwrap();
    (driver, worker)
}

#[test]
fn connections_go_on_after_a_rest() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.vsock.push(id, b"waits for buffers");
    rested(&mut rig.bringing);
    rested(&mut rig.taking);
    let [(_, data)] = &rig.all()[..] else { panic!() };
    assert_eq!(data, b"waits for buffers");
    rig.send(Op::Data, |_| {}, b"more");
    assert_eq!(rig.view(id).0, 4);
}

#[test]
fn guest_goes_on_with_new_connections_after_a_move() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    let (_, before) = rig.vsock.connect(7).unwrap();
    assert_eq!(rig.ops(), [Op::Request]);
    rig.vsock.push(id, b"lost");
    rig.move_over();
    assert_eq!(rig.vsock.view(id), None);
    assert!(rig.ops().is_empty(), "nothing of before");
    rig.vsock.with(Switch::reset_heard);
    // A program of the guest that has not heard of it yet.
    rig.send(Op::Data, |_| {}, b"too late");
    assert_eq!(rig.ops(), [Op::Reset]);
    let (_, after) = rig.vsock.connect(7).unwrap();
    assert_ne!(after, before, "the guest may still have that one");
    assert_eq!(rig.ops(), [Op::Request]);
    rig.open(1 << 20);
    assert_eq!(rig.guest.fault(), None);
}

#[test]
fn driver_hears_once_that_its_connections_are_reset() {
    let mut rig = Rig::new();
    let (mut driver, mut worker) = events(&rig.guest, &rig.vsock);
    driver.request(&[(EVENT, 4, true)]);
    driver.request(&[(EVENT + 16, 8, true)]);
    assert!(!worker.service() && driver.used().is_empty(), "nothing has happened");
    let state = rested(&mut worker);
    let vsock = moved(&moved(&rig.vsock));
    let (_, mut worker) = events(&rig.guest, &vsock);
    QueueWorker::restore(&mut worker, state).unwrap();
    vsock.set_active(true);
    rig.guest.put(EVENT, &[0xff; 6]);
    assert!(!worker.service() && !worker.service());
    assert_eq!(driver.used(), [(0, 4)]);
    assert_eq!(rig.guest.get(EVENT, 6), [0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!(rig.guest.interrupts(), 1);
    rig.vsock = vsock;
}

/// Linux ends all its connections when it hears of the reset, and tells nobody.
#[test]
fn nothing_begins_between_a_restore_and_the_moment_when_the_driver_has_heard() {
    for features in [Driver::FEATURES, Driver::FEATURES | F_EVENT_IDX] {
        let mut rig = Rig::new();
        rig.move_over();
        let vsock = rig.vsock.clone();
        let (mut driver, mut worker) = events_with(&rig.guest, &vsock, features);
        let (asked, port) = vsock.connect(7).unwrap();
        rig.send(Op::Request, |_| {}, &[]);
        let silent = |rig: &mut Rig| {
            rig.post(1);
            while rig.taking.service() {}
            rig.got().is_empty() && vsock.news().is_empty()
        };
        worker.service();
        assert!(silent(&mut rig), "it is not told");
        driver.request(&[(EVENT, 4, true)]);
        driver.request(&[(EVENT + 16, 4, true)]);
        worker.service();
        assert_eq!(driver.used(), [(0, 4)]);
        worker.service();
        assert!(silent(&mut rig), "it is told, and has not heard");
        if features != Driver::FEATURES {
            assert_eq!(driver.told_at(), 2, "it rings for the buffer of the event");
        }
        driver.request(&[(EVENT, 4, true)]);
        worker.service();
        while rig.taking.service() {}
        let [(request, _)] = &rig.all()[..] else { panic!() };
        assert_eq!((request.op.get(), request.src_port.get()), (Op::Request.code(), port));
        assert_eq!(vsock.view(asked), Some(View::Asked));
        let news = vsock.news();
        let dialing = news.iter().filter(|id| vsock.view(**id) == Some(View::Dialing(PORTS.host)));
        assert_eq!(dialing.count(), 1);
        worker.service();
        assert!(driver.used().is_empty(), "it is told once");
        assert_eq!(rig.guest.fault(), None);
    }
}

#[test]
fn event_is_for_the_driver_that_had_the_connections() {
    let guest = Guest::new();
    let hears = |vsock: &Vsock| {
        guest.put(EVENTS, &vec![0; 0x3_0000]);
        let (mut driver, mut worker) = events(&guest, vsock);
        driver.request(&[(EVENT, 4, true)]);
        worker.service();
        !driver.used().is_empty()
    };
    let idle = Vsock::new(5).unwrap();
    let vsock = moved(&idle);
    vsock.set_active(true);
    assert!(!hears(&vsock), "there was none");
    let reset = moved(&vsock);
    reset.set_active(true);
    reset.set_active(false);
    reset.set_active(true);
    assert!(!hears(&reset), "another one");
    let goes_on = moved(&vsock);
    goes_on.set_active(true);
    assert!(hears(&goes_on));
}

#[test]
fn buffer_without_room_for_an_event_breaks_the_device() {
    let rig = Rig::new();
    let (mut driver, mut worker) = events(&rig.guest, &moved(&rig.vsock));
    driver.request(&[(EVENT, 3, true)]);
    assert!(!worker.service());
    assert_eq!(rig.guest.fault(), Some(RingError::Request));
}

#[test]
fn state_that_cannot_be_is_refused() {
    let mut vsock = Vsock::new(5).unwrap();
    let before = vsock.save();
    vsock.restore(VsockState { active: true, next_port: 1024 }).unwrap_err();
    assert_eq!(vsock.save(), before, "nothing has changed");
    through_bytes(&VsockState { active: false, next_port: u32::MAX });
    damage(&VsockState { active: true, next_port: 1 << 30 }, 0x41, |state| {
        let mut vsock = Vsock::new(5).unwrap();
        vsock.restore(state).unwrap();
        vsock.set_active(true);
        let (_, port) = vsock.connect(1).unwrap();
        assert!((1 << 30..u32::MAX).contains(&port));
    });
}
