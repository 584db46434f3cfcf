//! Who gets a run of pages by exclusive-on-read grants.

use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Message, NoPages, Node,
    SliceId,
};
use std::collections::VecDeque;

/// Pages, all of slice 0's home.
const PAGES: u16 = 4;

/// Nodes whose messages arrive at once.
struct Slices(Vec<Node>);

impl Slices {
    fn new(count: u16) -> Self {
        let range = HomeRange { frames: 0..u64::from(PAGES), home: SliceId(0) };
        let homes = HomeTable::new(vec![range]).expect("one range");
        let all: Vec<SliceId> = (0..count).map(SliceId).collect();
        let node =
            |slice: &SliceId| Node::new(Config::new(*slice, all.clone(), homes.clone(), Epoch(1)));
        Self(all.iter().map(node).collect())
    }

    fn step(&mut self, slice: u16, input: Input) {
        let mut queue = VecDeque::from([(slice, input)]);
        while let Some((at, input)) = queue.pop_front() {
            let mut effects: Vec<Effect> = Vec::new();
            self.0[usize::from(at)]
                .step(0, input, &mut NoPages, &mut effects)
                .expect("nodes understand one another");
            for effect in effects {
                let Effect::Send { to, message } = effect else { continue };
                queue.push_back((to.0, message_from(at, message)));
            }
        }
    }

    fn read_run(&mut self, slice: u16) {
        self.step(slice, Input::Prefetch { gfn: Gfn(0), pages: PAGES, want: Read });
    }

    fn write(&mut self, slice: u16, page: u64) {
        self.step(slice, Input::Fault { gfn: Gfn(page), want: Write });
    }

    /// What each slice may do with a page.
    fn access(&self, page: u64) -> Vec<Access> {
        self.0.iter().map(|node| node.access(Gfn(page))).collect()
    }
}

fn message_from(slice: u16, message: Message) -> Input {
    Input::Message { from: SliceId(slice), epoch: Epoch(1), message }
}

use Access::{None as Nothing, Read, Write};

#[test]
fn pages_that_one_slice_has_to_write_are_granted_to_the_reader_of_a_run() {
    let mut slices = Slices::new(3);
    slices.write(2, 1);

    slices.read_run(1);

    for page in 0..u64::from(PAGES) {
        assert_eq!(slices.access(page), [Nothing, Write, Nothing], "page {page}");
    }
}

#[test]
fn next_reader_shares_what_was_granted() {
    let mut slices = Slices::new(3);
    slices.read_run(1);
    slices.read_run(2);
    assert_eq!(slices.access(0), [Nothing, Read, Read]);

    slices.read_run(0);
    assert_eq!(slices.access(0), [Read, Read, Read]);
}

#[test]
fn readers_do_not_take_granted_pages_from_one_another() {
    let mut slices = Slices::new(2);
    slices.read_run(1);
    for _ in 0..3 {
        slices.read_run(0);
        slices.read_run(1);
        assert_eq!(slices.access(2), [Read, Read]);
    }
}

#[test]
fn pages_that_are_written_again_are_granted_again() {
    let mut slices = Slices::new(2);
    slices.read_run(1);
    slices.read_run(0);
    slices.write(0, 2);
    slices.write(0, 3);
    assert_eq!(slices.access(3), [Write, Nothing]);

    slices.read_run(1);

    assert_eq!(slices.access(2), [Nothing, Write]);
    assert_eq!(slices.access(3), [Nothing, Write]);
    assert_eq!(slices.access(1), [Read, Read]);
}

#[test]
fn single_page_that_is_read_is_shared() {
    let mut slices = Slices::new(2);
    slices.step(1, Input::Fault { gfn: Gfn(0), want: Read });
    assert_eq!(slices.access(0), [Read, Read]);
}
