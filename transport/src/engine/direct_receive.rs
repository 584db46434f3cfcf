//! Direct receive: the body of a large frame is received where it belongs.
//!
//! ```text
//!   head and a part of the body are here --owner says where--> arriving --all has come--> received
//!         \--owner says nothing--> in the decoder's buffer, as any other frame
//! ```
//! This saves a copy of each page. Reads are kept short where a body may be received directly ([`LOOK`]), for what was
//! read into the decoder's buffer has to be copied from there.
#![expect(unsafe_code, reason = "exposed memory is reached by pointers")]
// UNSAFETY: a slice over exposed memory is made for the time of one read.

use crate::memory::PageMemory;
use crate::traits::{DIRECT_HEAD_MAX, DirectReceive};
use std::ptr::with_exposed_provenance_mut;

/// Bytes read into the decoder's buffer at a time: a page with its heads and some small frames fit.
pub(super) const LOOK: usize = 8 * 1024;
/// A body of which less is to come is not worth a question.
const REST_MIN: usize = 4096;
/// Of a frame of which less is missing nobody waits for the end: it is there about as soon as the owner asleep.
pub(super) const MISSING_MIN: usize = 16 * 1024;
/// Of a frame of which more is missing a part wakes the owner: it is copied while the rest comes.
pub(super) const MISSING_MAX: usize = 128 * 1024;

/// A body on its way into memory.
#[derive(Debug)]
pub(super) struct Arriving {
    head: [u8; DIRECT_HEAD_MAX],
    head_bytes: usize,
    /// Payload bytes of the frame.
    pub(super) length: u32,
    /// Where the rest goes, and how much that is.
    start: usize,
    left: usize,
    _memory: PageMemory,
}

/// Whether to ask where the body of a frame belongs, of which this is here.
pub(super) fn is_worth_it(length: usize, here: &[u8]) -> bool {
    here.len() >= DIRECT_HEAD_MAX && length - here.len() >= REST_MIN
}

impl Arriving {
    /// Begins with what is here of a frame. `None` if the memory is not there.
    pub(super) fn begin(
        memory: &PageMemory,
        direct_receive: DirectReceive,
        length: usize,
        here: &[u8],
    ) -> Option<Self> {
        let DirectReceive { head: head_bytes, offset } = direct_receive;
        let body = here.get(head_bytes.min(DIRECT_HEAD_MAX)..)?;
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length.checked_sub(head_bytes)?)?;
        if head_bytes > DIRECT_HEAD_MAX || end > memory.bytes() {
            return None;
        }
        let mut head = [0; DIRECT_HEAD_MAX];
        head.copy_from_slice(here.get(..DIRECT_HEAD_MAX)?);
        let (start, left) = (memory.start() + offset, length - head_bytes);
        let length = u32::try_from(length).ok()?;
        let mut arriving = Self { head, head_bytes, length, start, left, _memory: memory.clone() };
        arriving.rest().get_mut(..body.len())?.copy_from_slice(body);
        arriving.filled(body.len());
        Some(arriving)
    }

    /// Room for what is to come.
    pub(super) fn rest(&mut self) -> &mut [u8] {
        // SAFETY: the range lies in memory that `_memory` keeps mapped; whoever said that the body belongs
        // there lets nobody touch it until it has come, and the slice ends with the borrow of self.
        unsafe {
            std::slice::from_raw_parts_mut(with_exposed_provenance_mut(self.start), self.left)
        }
    }

    /// So many bytes were read; those that are none of the body are returned.
    pub(super) fn filled(&mut self, count: usize) -> usize {
        let own = count.min(self.left);
        self.start += own;
        self.left -= own;
        count - own
    }

    /// Bytes that are to come.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left == 0
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::testing::{PAGE, PAGES, bytes_of, memory};
    use crate::traits::{Class, Event, FRAME_BYTES_MAX, RUN_BYTES_MAX, Transport};
    use crate::{shm, tcp};
    use proptest::prelude::*;
    use std::time::{Duration, Instant};
    use wire::SliceId;

    const B: SliceId = SliceId(1);
    const HEAD: usize = 32;

    /// Sends frames of these sizes, in one class after another; every other body is given a place, its number
    /// of pages into memory. Each must come once, in order, with its bytes.
    fn all_arrive(mut ends: Vec<impl Transport>, sizes: &[usize]) {
        let (mut b, mut a) = (ends.pop().unwrap(), ends.pop().unwrap());
        let exposed = memory();
        b.expose(&exposed);
        let fill = |n: usize| u8::try_from(n % 251 + 1).unwrap();
        let is_bulk = |n: usize| n % 5 == 4 && sizes[n] <= FRAME_BYTES_MAX;
        let class = |n: usize| if is_bulk(n) { Class::Bulk } else { Class::Run };
        let place = |n: usize| (n * 17 * PAGE) % (PAGES * PAGE - RUN_BYTES_MAX);
        let is_right = |n: usize, body: &[u8]| body.iter().all(|byte| *byte == fill(n));
        let (mut sent, mut seen, mut direct) = (0, [0, 0], 0);
        let end = Instant::now() + Duration::from_secs(60);
        let next = |seen: &mut usize, is_bulk: bool| {
            let found =
                (*seen..sizes.len()).find(|n| (class(*n) == Class::Bulk) == is_bulk).unwrap();
            *seen = found + 1;
            found
        };
        let (total, mut came) = (sizes.len(), 0);
        while came < total {
            assert!(Instant::now() < end, "{came} of {sent} frames came");
            while sent < total {
                let body = vec![fill(sent); sizes[sent].saturating_sub(HEAD)];
                let mut head = vec![0; HEAD.min(sizes[sent])];
                head.iter_mut().zip(sent.to_le_bytes()).for_each(|(to, from)| *to = from);
                match a.send(B, class(sent), &head, &body) {
                    Ok(()) => sent += 1,
                    Err(_) => break,
                }
            }
            a.poll(16, &mut |_| {});
            b.poll(16, &mut |event| match event {
                Event::Head { bytes, length, direct_receive, .. } => {
                    let n = usize::from_le_bytes(bytes[..8].try_into().unwrap());
                    assert_eq!((bytes.len(), length), (DIRECT_HEAD_MAX, sizes[n]));
                    let offset = u64::try_from(place(n)).unwrap();
                    *direct_receive = (n % 2 == 0).then_some(DirectReceive { head: HEAD, offset });
                }
                Event::DirectlyReceived { bytes, length, .. } => {
                    let n = next(&mut seen[0], false);
                    assert_eq!((length, n % 2, bytes.len()), (sizes[n], 0, HEAD));
                    let body = bytes_of(&exposed, place(n), sizes[n] - HEAD);
                    assert!(is_right(n, body), "frame {n}");
                    (came, direct) = (came + 1, direct + 1);
                }
                Event::Frame { class, bytes, .. } => {
                    let is_bulk = class == Class::Bulk;
                    let n = next(&mut seen[usize::from(is_bulk)], is_bulk);
                    assert_eq!(bytes.len(), sizes[n]);
                    assert!(is_right(n, bytes.get(HEAD..).unwrap_or_default()), "frame {n}");
                    came += 1;
                }
                Event::Lost { cause, .. } => panic!("{cause}"),
            });
        }
        let large = sizes.iter().enumerate().filter(|(n, size)| {
            n % 2 == 0 && class(*n) == Class::Run && **size > LOOK + REST_MIN + 2 * DIRECT_HEAD_MAX
        });
        assert!(direct >= large.count(), "only {direct} direct");
    }

    /// A frame or two at a time.
    fn small_windows() -> Config {
        Config {
            window: [160 * 1024, 160 * 1024, 640 * 1024, 160 * 1024],
            queue_frames: 4096,
            ..Config::default()
        }
    }

    #[test]
    fn full_frames_one_after_another_are_received_directly() {
        for pages in [15, 64] {
            let sizes = [HEAD + pages * PAGE].repeat(60);
            all_arrive(tcp::mesh(2, &Config::default()).unwrap(), &sizes);
            all_arrive(shm::mesh(2, &Config::default()).unwrap(), &sizes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn frames_of_any_size_come_once_in_order(
            sizes in prop::collection::vec(
                prop_oneof![8usize..100, 100usize..9000, 9000usize..65_000, 65_000..=RUN_BYTES_MAX],
                1..60,
            ),
        ) {
            all_arrive(tcp::mesh(2, &small_windows()).unwrap(), &sizes);
            all_arrive(shm::mesh(2, &small_windows()).unwrap(), &sizes);
        }

        #[test]
        fn places_outside_the_memory_are_not_used(
            head in any::<usize>(),
            offset in any::<u64>(),
            length in any::<usize>(),
            here in 0usize..200,
        ) {
            let memory = memory_once();
            let begun =
                Arriving::begin(&memory, DirectReceive { head, offset }, length, &vec![0; here]);
            if let Some(arriving) = begun {
                let end = arriving.start + arriving.left;
                prop_assert!(arriving.start >= memory.start() && end <= memory.start() + memory.bytes());
            }
        }
    }

    /// One for all cases: it is never unmapped.
    fn memory_once() -> PageMemory {
        static MEMORY: std::sync::OnceLock<PageMemory> = std::sync::OnceLock::new();
        MEMORY.get_or_init(memory).clone()
    }
}
