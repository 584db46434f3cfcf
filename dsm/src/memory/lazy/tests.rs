use super::*;
use crate::kernel::fake::{FakeKernel, Touch};
use crate::memory::{ChunkId, Memory, Runs};
use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Two and a half chunks, of which the first begins in its middle.
const FRAMES: Range<u64> = 256..1536 + 100;
const LONG: Duration = Duration::from_secs(60);

/// Each page of these frames has its number in its first bytes.
#[derive(Debug)]
struct Numbered {
    frames: Vec<Range<u64>>,
    reads: AtomicUsize,
    torn: bool,
}

impl Numbered {
    fn of(frames: &[Range<u64>]) -> Arc<Self> {
        Arc::new(Self { frames: frames.to_vec(), reads: AtomicUsize::new(0), torn: false })
    }
}

impl Source for Numbered {
    fn name(&self) -> String {
        "numbers".into()
    }

    fn has(&self, frames: Range<u64>) -> bool {
        self.frames.iter().any(|range| range.start < frames.end && frames.start < range.end)
    }

    fn read(
        &self,
        frames: Range<u64>,
        give: &mut crate::memory::Give<'_>,
    ) -> Result<(), LoadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        for frame in frames.filter(|frame| self.frames.iter().any(|range| range.contains(frame))) {
            let mut page = [0; PAGE_SIZE];
            page[..8].copy_from_slice(&frame.to_ne_bytes());
            give(frame, &page)?;
        }
        if self.torn { Err(LoadError::Source("torn".into())) } else { Ok(()) }
    }
}

fn memory(memory: Memory, source: Arc<Numbered>) -> (GuestRam, FakeKernel) {
    let made = Mutex::new(None);
    let frames = from_ref(&FRAMES);
    let ram = GuestRam::with_mapping(frames, frames, memory, |span, file| {
        let kernel = FakeKernel::new(span, file, 1, 0)?;
        *made.lock().unwrap() = Some(kernel.clone());
        Ok(Box::new(kernel))
    });
    let ram = ram.unwrap();
    ram.begin_loading(frames, source, (LONG, None)).unwrap();
    (ram, made.into_inner().unwrap().unwrap())
}

fn number(ram: &GuestRam, frame: u64) -> u64 {
    let mut bytes = [0; 8];
    ram.read(Gfn(frame), 0, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn counts(ram: &GuestRam) -> (usize, usize, usize) {
    let Loaded { pieces, left, on_demand, .. } = ram.loaded();
    (pieces, left, on_demand)
}

/// The page of a frame in the mapping.
fn page(frame: u64) -> usize {
    usize::try_from(frame).unwrap()
}

#[test]
fn guest_waits_for_its_chunk_and_what_it_stores_stays() {
    for kind in [Memory::Memfd, Memory::Anonymous] {
        let source = Numbered::of(from_ref(&FRAMES));
        let (ram, kernel) = memory(kind, Arc::clone(&source));
        assert_eq!(counts(&ram), (2, 2, 0));
        assert_eq!(source.reads.load(Ordering::Relaxed), 2, "parts of chunks are here");
        assert_eq!((number(&ram, 300), number(&ram, 1600)), (300, 1600));

        assert_eq!(kernel.touch(7, 0, page(1030), true), Touch::Waits);
        assert_eq!(kernel.touch(8, 0, page(1031), false), Touch::Waits);
        assert!(ram.load_one().unwrap());
        assert_eq!(kernel.take_woken(), [7, 8], "{kind}");
        assert_eq!(kernel.touch(7, 0, page(1030), true), Touch::Done);
        kernel.store(page(1030), 0, 99);
        assert_eq!(kernel.load(page(1031), 0), 1031);
        assert_eq!(counts(&ram), (2, 1, 1));
        assert!(kernel.is_watched(&(512..1024)) && !kernel.is_watched(&(1024..1536)));

        assert!(ram.load_one().unwrap());
        assert!(!ram.load_one().unwrap());
        assert_eq!((number(&ram, 1030), number(&ram, 512)), (99, 512));
        assert!(!kernel.is_watched(&FRAMES));
        assert!(ram.lazy.get().unwrap().source().is_none(), "its files are closed");
    }
}

#[test]
fn whoever_looks_at_contents_finds_them() {
    let looks: [fn(&GuestRam) -> bool; 6] = [
        |ram| number(ram, 600) == 600,
        |ram| !ram.is_hole(Gfn(600)),
        |ram| ram.peek(Gfn(600), 0, &mut [0; 8]),
        |ram| Runs::default().next(ram, 512..1024) == Some(512..1024),
        |ram| ram.file_run(Gfn(600), 3) == Some(600 * PAGE_SIZE),
        |ram| {
            ram.write(Gfn(600), 0, &[1]);
            number(ram, 601) == 601
        },
    ];
    for look in looks {
        let (ram, kernel) = memory(Memory::Memfd, Numbered::of(from_ref(&FRAMES)));
        assert!(look(&ram));
        assert!(!kernel.is_watched(&(512..1024)) && kernel.is_watched(&(1024..1536)));
    }
}

#[test]
fn what_is_zero_is_here_at_once() {
    let (ram, kernel) = memory(Memory::Memfd, Numbered::of(from_ref(&(1100..1101))));
    assert_eq!(ram.loaded().pieces, 1);
    assert!(!kernel.is_watched(&(512..1024)) && ram.is_hole(Gfn(600)));
    let places = || [1, 2].map(|chunk| ram.place(ChunkId(chunk)));
    assert_eq!(places(), [Place::Plain, Place::Watched], "it is not put on a huge page");
    let here = |frames| ram.without_absent(&frames);
    assert_eq!(here(FRAMES), [256..1024, 1536..1636]);
    assert_eq!(number(&ram, 1100), 1100);
    assert_eq!(places(), [Place::Plain; 2]);
    assert_eq!((here(FRAMES), ram.is_hole(Gfn(1101))), (vec![FRAMES], true));
}

#[test]
fn what_does_not_come_is_told_and_nothing_is_opened() {
    let torn = Numbered {
        frames: from_ref(&(512..1536)).to_vec(),
        reads: AtomicUsize::new(0),
        torn: true,
    };
    let frames = from_ref(&(512..1536));
    let ram = GuestRam::with_mapping(frames, frames, Memory::Memfd, |span, file| {
        Ok(Box::new(FakeKernel::new(span, file, 1, 0)?))
    });
    let ram = ram.unwrap();
    ram.begin_loading(frames, Arc::new(torn), (LONG, None)).unwrap();
    assert!(ram.load_failure().is_none());
    assert!(ram.load_one().unwrap_err().to_string().contains("torn"));
    // It does not hang.
    assert!(ram.missed().is_none());
    number(&ram, 600);
    assert!(ram.missed().is_some() && ram.missed().is_none(), "it is told once");
    assert_eq!(ram.load_failure().unwrap().to_string(), "torn");
    let (told, heard) = channel();
    ram.when_load_fails(move |error| told.send(error.to_string()).unwrap());
    assert_eq!(heard.try_recv().unwrap(), "torn");
    assert_eq!(ram.loaded().left, 2);
}

#[test]
fn memory_that_is_not_there_is_not_loaded() {
    let ram = GuestRam::new(from_ref(&(0..512))).unwrap();
    let source = || Numbered::of(from_ref(&(0..512)));
    let begun = |frames: Range<u64>| ram.begin_loading(from_ref(&frames), source(), (LONG, None));
    assert!(matches!(begun(0..1024), Err(LoadError::Layout)));
    assert_eq!(ram.loaded(), Loaded::default());
    assert_eq!(ram.without_absent(&(0..512)), from_ref(&(0..512)));
}
