//! The same calls against Linux and against the fake: they answer alike, and leave the same pages mapped.
#![expect(unsafe_code, reason = "pread and pwrite on guest memory")]
// UNSAFETY: threads of the tests touch guest memory by system calls, which fail where an access would be a signal.

use super::fake::uffd::FakeUffd;
use super::fake::{FakeKernel, Touch};
use super::linux::LinuxUserfaultfd;
use super::userfaultfd::Userfaultfd;
use super::{Fault, FaultWatch, GuestMapping, HUGE, PAGE, Span, check_host, memory_file};
use needs::Need;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

const CHUNK: u64 = 512;
const PAGES: u64 = 2 * CHUNK;

#[derive(Clone, Debug)]
enum Call {
    Register(Range<u64>, FaultWatch),
    Unregister(Range<u64>),
    Map(Range<u64>, bool),
    Protect(Range<u64>, bool),
    Writable(Range<u64>, bool),
    Zap(Range<u64>),
    /// Left out where a page is watched: Linux would have the caller wait.
    Populate(Range<u64>),
    /// The file gets these pages.
    Back(Range<u64>),
    Touch(u64, bool),
    Collapse(u64),
}

/// Pages around the border of two chunks, and chunks.
fn range() -> impl Strategy<Value = Range<u64>> {
    let short = (CHUNK - 8..CHUNK + 8, 1..9u64).prop_map(|(first, pages)| first..first + pages);
    let long = (0..PAGES - 1, 1..PAGES).prop_map(|(first, n)| first..(first + n).min(PAGES));
    prop_oneof![8 => short, 1 => Just(0..CHUNK), 1 => Just(0..PAGES), 2 => long]
}

fn call() -> impl Strategy<Value = Call> {
    let watch = prop_oneof![
        Just(FaultWatch::Everything),
        Just(FaultWatch::GivenAway),
        Just(FaultWatch::Writes)
    ];
    prop_oneof![
        3 => (range(), watch).prop_map(|(pages, watch)| Call::Register(pages, watch)),
        1 => range().prop_map(Call::Unregister),
        4 => (range(), any::<bool>()).prop_map(|(pages, wp)| Call::Map(pages, wp)),
        4 => (range(), any::<bool>()).prop_map(|(pages, on)| Call::Protect(pages, on)),
        2 => (range(), any::<bool>()).prop_map(|(pages, on)| Call::Writable(pages, on)),
        3 => range().prop_map(Call::Zap),
        2 => range().prop_map(Call::Populate),
        3 => range().prop_map(Call::Back),
        6 => (CHUNK - 8..CHUNK + 16, any::<bool>()).prop_map(|(page, write)| Call::Touch(page, write)),
    ]
}

/// Linux, and a thread that touches its guest memory.
struct Linux {
    span: Span,
    uffd: LinuxUserfaultfd,
    touch: Sender<(u64, bool)>,
    touched: Receiver<Touch>,
}

/// Touches a byte by a system call.
fn touch(file: &File, address: usize, write: bool) -> Touch {
    let byte = with_exposed_provenance_mut::<libc::c_void>(address);
    let count = if write {
        // SAFETY: a byte of guest memory, which is no memory of Rust's; what cannot be touched is an error.
        unsafe { libc::pread(file.as_raw_fd(), byte, 1, 0) }
    } else {
        // SAFETY: as above.
        unsafe { libc::pwrite(file.as_raw_fd(), byte, 1, 0) }
    };
    if count == 1 { Touch::Done } else { Touch::Refused }
}

impl Linux {
    fn new(file: &File) -> Self {
        let bytes = usize::try_from(PAGES * PAGE).unwrap();
        let span = Span::reserve(bytes).unwrap();
        span.map_file(0, bytes, file).unwrap();
        let (touch_sender, touches) = channel::<(u64, bool)>();
        let (done, touched) = channel();
        let (start, other) = (span.start(), memory_file(c"touched", 0).unwrap());
        other.set_len(1).unwrap();
        thread::spawn(move || {
            for (page, write) in touches {
                let address = start + usize::try_from(page * PAGE).unwrap();
                done.send(touch(&other, address, write)).unwrap();
            }
        });
        Self { span, uffd: LinuxUserfaultfd::open().unwrap(), touch: touch_sender, touched }
    }

    /// What becomes of the touch in hand.
    fn outcome(&self, faults: &mut Vec<Fault>) -> Touch {
        loop {
            if let Ok(touch) = self.touched.try_recv() {
                return touch;
            }
            self.uffd.read(faults).unwrap();
            if !faults.is_empty() {
                return Touch::Waits;
            }
            thread::yield_now();
        }
    }

    /// Whether pages are mapped, and write-protected, as `/proc/self/pagemap` tells (bits 63 and 57).
    fn pages(&self, pagemap: &File) -> Vec<(bool, bool)> {
        let mut bytes = vec![0; usize::try_from(PAGES * 8).unwrap()];
        let at = u64::try_from(self.span.start()).unwrap() / PAGE * 8;
        pagemap.read_exact_at(&mut bytes, at).unwrap();
        let entries = bytes.chunks_exact(8).map(|at| u64::from_ne_bytes(at.try_into().unwrap()));
        entries.map(|entry| (entry >> 63 & 1 != 0, entry >> 57 & 1 != 0)).collect()
    }
}

struct Both {
    linux: Linux,
    fake: FakeKernel,
    fake_uffd: FakeUffd,
    files: [File; 2],
    pagemap: File,
}

fn errno(result: Result<(), Error>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap())
}

impl Both {
    fn new() -> Self {
        let bytes = usize::try_from(PAGES * PAGE).unwrap();
        let files = [c"linux", c"fake"].map(|name| {
            let file = memory_file(name, 0).unwrap();
            file.set_len(PAGES * PAGE).unwrap();
            file
        });
        let fake = FakeKernel::new(Span::reserve(bytes).unwrap(), &files[1], 1, 0).unwrap();
        fake.map_file(0, bytes, &files[1]).unwrap();
        let linux = Linux::new(&files[0]);
        let fake_uffd = FakeUffd::new(fake.clone());
        Self { linux, fake, fake_uffd, files, pagemap: File::open("/proc/self/pagemap").unwrap() }
    }

    /// One request of both; their answers must be the same.
    fn ask(&self, request: impl Fn(&dyn Userfaultfd, u64) -> Result<(), (Error, i64)>) {
        let start = |mapping: &dyn GuestMapping| u64::try_from(mapping.start()).unwrap();
        let answer = |result: Result<(), (Error, i64)>| {
            result.err().map(|(error, mapped)| (error.raw_os_error().unwrap(), mapped))
        };
        let linux = answer(request(&self.linux.uffd, start(&self.linux.span)));
        assert_eq!(answer(request(&self.fake_uffd, start(&self.fake))), linux);
    }

    fn change(&self, change: impl Fn(&dyn GuestMapping) -> Result<(), Error>) -> Option<i32> {
        let linux = errno(change(&self.linux.span));
        assert_eq!(errno(change(&self.fake)), linux);
        linux
    }

    fn map(&self, pages: &Range<u64>, wp: bool) {
        let len = (pages.end - pages.start) * PAGE;
        self.ask(|uffd, start| uffd.map_present(start + pages.start * PAGE, len, wp));
    }

    fn carry_out(&self, call: &Call) {
        let plain = |error: Error| (error, 0);
        let at = |pages: &Range<u64>| (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let bytes = |pages: &Range<u64>| {
            let (offset, len) = at(pages);
            (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap())
        };
        match call {
            Call::Register(pages, watch) => {
                let (offset, len) = at(pages);
                self.ask(|uffd, start| {
                    uffd.register(start + offset, len, watch.modes()).map_err(plain)
                });
            }
            Call::Unregister(pages) => {
                let (offset, len) = at(pages);
                self.ask(|uffd, start| uffd.unregister(start + offset, len).map_err(plain));
            }
            Call::Map(pages, wp) => self.map(pages, *wp),
            Call::Protect(pages, on) => {
                let (offset, len) = at(pages);
                self.ask(|uffd, start| uffd.write_protect(start + offset, len, *on).map_err(plain));
            }
            Call::Writable(pages, on) => {
                let (offset, len) = bytes(pages);
                self.change(|mapping| mapping.set_writable(offset, len, *on));
            }
            Call::Zap(pages) => {
                let (offset, len) = bytes(pages);
                self.change(|mapping| mapping.advise(offset, len, libc::MADV_DONTNEED));
            }
            Call::Populate(pages) if self.fake.is_watched(pages) => {}
            Call::Populate(pages) => {
                let (offset, len) = bytes(pages);
                self.change(|mapping| mapping.advise(offset, len, libc::MADV_POPULATE_WRITE));
            }
            Call::Back(pages) => self.back(pages),
            Call::Touch(page, write) => self.touch(*page, *write),
            Call::Collapse(chunk) => {
                let offset = usize::try_from(*chunk).unwrap() * HUGE;
                self.change(|mapping| mapping.advise(offset, HUGE, libc::MADV_COLLAPSE));
            }
        }
    }

    fn back(&self, pages: &Range<u64>) {
        for file in &self.files {
            pages.clone().for_each(|page| file.write_all_at(&[1], page * PAGE).unwrap());
        }
    }

    /// A thread touches a page. If it has to wait, the page is given to it.
    fn touch(&self, page: u64, write: bool) {
        let (mut faults, index) = (Vec::new(), usize::try_from(page).unwrap());
        self.linux.touch.send((page, write)).unwrap();
        let linux = self.linux.outcome(&mut faults);
        assert_eq!(self.fake.touch(7, 0, index, write), linux);
        if linux != Touch::Waits {
            return;
        }
        let mut told = Vec::new();
        self.fake_uffd.read(&mut told).unwrap();
        let fault = |faults: &[Fault], start: usize| {
            let at = faults[0].address - u64::try_from(start).unwrap();
            (faults.len(), at, faults[0].write)
        };
        assert_eq!(fault(&told, self.fake.start()), fault(&faults, self.linux.span.start()));

        self.back(&(page..page + 1));
        self.map(&(page..page + 1), false);
        let plain = |error: Error| (error, 0);
        self.ask(|uffd, start| uffd.write_protect(start + page * PAGE, PAGE, false).map_err(plain));
        self.ask(|uffd, start| uffd.wake(start + page * PAGE, PAGE).map_err(plain));
        faults.clear();
        let linux = self.linux.outcome(&mut faults);
        assert_eq!(self.fake.take_woken(), [7]);
        assert_eq!(self.fake.touch(7, 0, index, write), linux);
        assert_eq!(linux, Touch::Done);
    }

    fn assert_alike(&self) {
        let fake = (0..usize::try_from(PAGES).unwrap()).map(|page| self.fake.page(page));
        let linux = self.linux.pages(&self.pagemap).into_iter();
        let differ = linux.zip(fake).enumerate().filter(|(_, (linux, fake))| linux != fake);
        let differ: Vec<_> = differ.take(5).collect();
        assert!(differ.is_empty(), "(page, (Linux, fake)): {differ:?}");
    }

    fn run(&self, calls: &[Call]) {
        for call in calls {
            self.carry_out(call);
            self.assert_alike();
        }
    }
}

#[test]
fn uffd_fake_answers_as_linux() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    proptest!(|(calls in vec(call(), 1..60))| {
        Both::new().run(&calls);
    });
}

#[test]
fn uffd_fake_knows_huge_pages_as_linux() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let both = Both::new();
    both.run(&[Call::Back(0..CHUNK)]);
    (0..CHUNK).for_each(|page| both.touch(page, true));
    if both.linux.span.advise(0, HUGE, libc::MADV_COLLAPSE).is_err() {
        needs::leave_out("this kernel gives memory files no huge pages");
        return;
    }
    let whole = || 0..CHUNK;
    both.run(&[
        Call::Collapse(0),
        // A part of it is taken: nothing of it stays mapped.
        Call::Register(whole(), FaultWatch::GivenAway),
        Call::Map(3..4, false),
        Call::Zap(3..4),
        Call::Map(0..10, true),
        Call::Protect(whole(), true),
        Call::Collapse(0),
        Call::Unregister(whole()),
        Call::Map(0..1, false),
        Call::Collapse(0),
        Call::Register(whole(), FaultWatch::GivenAway),
        Call::Protect(5..6, true),
        Call::Touch(6, true),
        Call::Unregister(whole()),
        Call::Collapse(0),
        Call::Writable(9..10, false),
        Call::Touch(9, true),
        Call::Touch(9, false),
        Call::Writable(9..10, true),
        Call::Collapse(0),
        Call::Zap(whole()),
    ]);
}

/// What a snapshot does to private chunks that lie off the file, with pages that were never touched among them.
#[test]
fn uffd_fake_protects_private_memory_as_linux() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let both = Both::new();
    let plain = |error: Error| (error, 0);
    let bytes = u64::try_from(HUGE).unwrap();
    assert_eq!(both.change(|mapping| mapping.map_anonymous(0, HUGE)), None);
    both.touch(3, true);
    both.ask(|uffd, start| uffd.register(start, bytes, FaultWatch::Writes.modes()).map_err(plain));
    both.ask(|uffd, start| uffd.write_protect(start, bytes, true).map_err(plain));
    for (page, write) in [(3, false), (3, true), (4, false), (4, true), (5, true), (5, true)] {
        both.touch(page, write);
    }
    both.ask(|uffd, start| uffd.unregister(start, bytes).map_err(plain));
    both.touch(6, true);
}

/// What `memory::into_file` does to bring private memory into the file.
#[test]
fn uffd_fake_moves_private_memory_as_linux() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let both = Both::new();
    let plain = |error: Error| (error, 0);
    assert_eq!(both.change(|mapping| mapping.map_anonymous(0, HUGE)), None);
    both.touch(3, true);
    both.ask(|uffd, start| uffd.register(start, HUGE as u64, 7).map_err(plain));
    both.ask(|uffd, start| uffd.register(start, HUGE as u64, 1).map_err(plain));
    both.touch(3, false);
    both.ask(|uffd, start| uffd.map_present(start, PAGE, false));
    let aside = Span::reserve(HUGE).unwrap();
    assert_eq!(both.change(|mapping| mapping.move_pages(0, HUGE, &aside)), None);

    both.linux.touch.send((3, true)).unwrap();
    let mut faults = Vec::new();
    assert_eq!(both.linux.outcome(&mut faults), Touch::Waits);
    assert_eq!(both.fake.touch(7, 0, 3, true), Touch::Waits);
    for (mapping, file) in
        [&both.linux.span as &dyn GuestMapping, &both.fake].iter().zip(&both.files)
    {
        mapping.map_file(0, HUGE, file).unwrap();
    }
    both.ask(|uffd, start| uffd.wake(start, HUGE as u64).map_err(plain));
    faults.clear();
    assert_eq!(both.linux.outcome(&mut faults), Touch::Done);
    assert_eq!((both.fake.take_woken(), both.fake.touch(7, 0, 3, true)), (vec![7], Touch::Done));
    both.assert_alike();
}

/// What `memory::lazy` does to memory that comes later, private or of the file. No other userfaultfd gets in its way.
#[test]
fn uffd_fake_takes_memory_that_comes_later_as_linux() {
    if !needs::has(Need::Uffd, check_host()) {
        return;
    }
    let plain = |error: Error| (error, 0);
    let bytes = HUGE as u64;
    for watch in [FaultWatch::Absent, FaultWatch::AbsentInFile] {
        let both = Both::new();
        if watch == FaultWatch::Absent {
            assert_eq!(both.change(|mapping| mapping.map_anonymous(0, HUGE)), None);
        }
        both.ask(|uffd, start| uffd.copy(start, &[7; 4096]));
        both.ask(|uffd, start| uffd.register(start, bytes, watch.modes()).map_err(plain));
        let (linux, fake) = (LinuxUserfaultfd::open().unwrap(), FakeUffd::new(both.fake.clone()));
        let at = |mapping: &dyn GuestMapping| u64::try_from(mapping.start()).unwrap();
        let modes = FaultWatch::Writes.modes();
        let refused = [
            linux.register(at(&both.linux.span), bytes, modes),
            fake.register(at(&both.fake), bytes, modes),
        ];
        assert_eq!(refused.map(errno), [Some(libc::EBUSY); 2]);

        both.ask(|uffd, start| uffd.copy(start + 3 * PAGE, &[7; 2 * 4096]));
        both.assert_alike();
        // Pages are there: at once, and behind others.
        both.ask(|uffd, start| uffd.copy(start + 4 * PAGE, &[8; 2 * 4096]));
        both.ask(|uffd, start| uffd.copy(start + 2 * PAGE, &[8; 2 * 4096]));
        both.assert_alike();
        both.linux.touch.send((100, true)).unwrap();
        let mut faults = Vec::new();
        assert_eq!(both.linux.outcome(&mut faults), Touch::Waits);
        assert_eq!(both.fake.touch(7, 0, 100, true), Touch::Waits);
        both.ask(|uffd, start| uffd.unregister(start, bytes).map_err(plain));
        both.ask(|uffd, start| uffd.wake(start, bytes).map_err(plain));
        faults.clear();
        assert_eq!(both.linux.outcome(&mut faults), Touch::Done);
        assert_eq!(
            (both.fake.take_woken(), both.fake.touch(7, 0, 100, true)),
            (vec![7], Touch::Done)
        );
        both.assert_alike();
        for (page, value) in [(2, 8), (3, 7), (4, 7), (5, 0)] {
            assert_eq!(both.fake.load(page, 5) & 0xff, value);
        }
    }
}
