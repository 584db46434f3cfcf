//! Generations that come one after another, at a time, and back from the dead.

use super::super::guard::Guard;
use super::super::tests::{Folder, ask, done, open_again};
use super::super::{ImageError, ImageFormat, ImageOptions};
use super::*;
use crate::back_end::{DiskReply, DiskRequest};
use crate::fence::{Fence, NotOurs, Standing};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

const VM: [u8; 16] = [7; 16];

fn writer(generation: u64) -> Writer {
    Writer { vm: VM, generation }
}

/// Claims once nobody is between fork and exec, with copies of all files and so of their locks.
fn claim(image: &Path, ours: Writer) -> GenerationRecord {
    for _ in 0..1000 {
        match GenerationRecord::claim(image, ours) {
            Err(RecordError::InUse { .. } | RecordError::OtherVm { .. }) => {
                sleep(Duration::from_millis(5));
            }
            claimed => return claimed.unwrap(),
        }
    }
    panic!("{ours} is in use for ever");
}

fn image(folder: &Folder) -> PathBuf {
    folder.image(ImageFormat::Raw, 1 << 20)
}

#[test]
fn older_generation_is_refused_and_told_why() {
    let folder = Folder::new();
    let image = image(&folder);
    drop(claim(&image, writer(7)));
    let refused = GenerationRecord::claim(&image, writer(6)).unwrap_err().to_string();
    let record = path_of(&image);
    let why = "generation 7 of this VM writes here; this one is 6: it was restored elsewhere";
    assert_eq!(refused, format!("{}: {why}", record.display()));
    // The same one may come back, as after a move to another host.
    claim(&image, writer(7)).still_ours().unwrap();
    let too_high = GenerationRecord::claim(&image, writer(u64::MAX));
    assert!(matches!(too_high, Err(RecordError::Generation(u64::MAX))));
}

#[test]
fn one_that_lives_keeps_its_own_generation_and_lower_ones_out_and_no_higher_one() {
    let folder = Folder::new();
    let image = image(&folder);
    let old = claim(&image, writer(3));
    let again = GenerationRecord::claim(&image, writer(3));
    assert!(matches!(again, Err(RecordError::InUse { .. })), "{again:?}");
    old.still_ours().unwrap();
    let new = claim(&image, writer(4));
    let lost = old.still_ours();
    assert!(matches!(lost, Err(RecordError::Overtaken { theirs: 4, ours: 3, .. })), "{lost:?}");
    drop(new);
    let lost = old.still_ours();
    assert!(matches!(lost, Err(RecordError::Overtaken { .. })), "it stays so: {lost:?}");
}

#[test]
fn another_vm_may_have_the_image_once_nobody_writes_it() {
    let folder = Folder::new();
    let image = image(&folder);
    let first = claim(&image, writer(9));
    let other = Writer { vm: [8; 16], generation: 0 };
    let refused = GenerationRecord::claim(&image, other);
    assert!(matches!(refused, Err(RecordError::OtherVm { theirs, .. }) if theirs == writer(9)));
    drop(first);
    let second = claim(&image, other);
    second.still_ours().unwrap();
    // Not even its own former generation.
    let refused = GenerationRecord::claim(&image, writer(10));
    assert!(matches!(refused, Err(RecordError::OtherVm { theirs, .. }) if theirs == other));
}

#[test]
fn of_many_claimers_of_a_generation_one_has_it() {
    let folder = Folder::new();
    let image = image(&folder);
    for generation in 1..20 {
        let claimed: Vec<_> = thread::scope(|threads| {
            let all: Vec<_> = (0..4)
                .map(|_| threads.spawn(|| GenerationRecord::claim(&image, writer(generation))))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let (have, refused): (Vec<_>, Vec<_>) = claimed.into_iter().partition(Result::is_ok);
        assert!(have.len() <= 1, "{have:?}");
        for refused in refused {
            assert!(matches!(refused, Err(RecordError::InUse { .. })), "{refused:?}");
        }
        drop(have);
        claim(&image, writer(generation)).still_ours().unwrap();
    }
}

#[test]
fn record_that_was_half_written_leaves_the_one_before() {
    let folder = Folder::new();
    let image = image(&folder);
    drop(claim(&image, writer(5)));
    drop(claim(&image, writer(6)));
    let path = path_of(&image);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(Entry::last(&bytes).unwrap().writer, writer(6));
    // Each length of a write that was cut off, over what was there before.
    let entry = Entry { sequence: 3, writer: writer(7) };
    let at = usize::try_from(entry.sequence % 2).unwrap() * PLACE_BYTES;
    let (new, complete) = (entry.bytes(), 0..PLACE_BYTES);
    for cut in complete {
        let mut bytes = bytes.clone();
        bytes[at..at + cut].copy_from_slice(&new[..cut]);
        let last = Entry::last(&bytes).unwrap().writer;
        assert!(last == writer(6) || (last == writer(7) && cut > 100), "{cut}: {last}");
    }
}

#[test]
fn file_that_is_no_record_is_left_alone() {
    let folder = Folder::new();
    let image = image(&folder);
    let path = path_of(&image);
    fs::write(&path, "notes of a user").unwrap();
    let refused = GenerationRecord::claim(&image, writer(1));
    assert!(matches!(refused, Err(RecordError::Damaged { .. })), "{refused:?}");
    assert_eq!(fs::read(&path).unwrap(), b"notes of a user");
    let refused = GenerationRecord::claim(&folder.path().join("nothing"), writer(1));
    assert!(matches!(refused, Err(RecordError::File { .. })), "{refused:?}");
    let refused = GenerationRecord::claim(folder.path(), writer(1));
    assert!(matches!(refused, Err(RecordError::Kind { .. })), "{refused:?}");
}

#[test]
fn record_that_is_gone_is_nobodys() {
    let folder = Folder::new();
    let image = image(&folder);
    let record = claim(&image, writer(1));
    let path = path_of(&image);
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(matches!(record.still_ours(), Err(RecordError::Replaced { .. })));
    // Whoever claims next has another file.
    fs::write(&path, bytes).unwrap();
    assert!(matches!(record.still_ours(), Err(RecordError::Replaced { .. })));
}

#[test]
fn who_was_stopped_looks_before_anything_is_written() {
    let folder = Folder::new();
    let image = image(&folder);
    let (fence, old) = (Arc::<Fence>::default(), claim(&image, writer(1)));
    let before = Fence::now();
    let guard = Guard::new(&fence, Some(old));
    let after = Fence::now();
    assert_eq!(guard.look(after + 1_000_000_000), Standing::Open);
    let looked = after + 1_000_000_000;
    let _new = claim(&image, writer(2));
    // It has just looked.
    assert_eq!(guard.look(looked + 50_000_000), Standing::Open);
    assert_eq!(guard.look(before), Standing::Open);
    assert_eq!(fence.not_ours(), None);
    // SIGSTOP, SIGCONT.
    assert_eq!(guard.look(looked + 100_000_001), Standing::Over);
    let Some(NotOurs::Overtaken(why)) = fence.not_ours() else { panic!("{fence:?}") };
    assert!(why.contains("generation 2 of this VM writes here; this one is 1"), "{why}");
    assert_eq!(guard.look(before), Standing::Over, "for ever");
}

/// Whoever cannot look does not know that the VM goes on elsewhere.
#[test]
fn record_that_cannot_be_read_lets_nobody_write_and_names_nobody() {
    let harms: [fn(&Path); 3] = [
        |path| fs::rename(path, path.with_extension("away")).unwrap(),
        |path| OpenOptions::new().write(true).open(path).unwrap().set_len(7).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, [0; 512]).unwrap();
        },
    ];
    for harm in harms {
        let folder = Folder::new();
        let image = image(&folder);
        let fence = Arc::<Fence>::default();
        let guard = Guard::new(&fence, Some(claim(&image, writer(1))));
        harm(&path_of(&image));
        assert_eq!(guard.look(Fence::now() + 1_000_000_000), Standing::Over);
        assert!(matches!(fence.not_ours(), Some(NotOurs::Unknown(_))), "{fence:?}");
    }
}

#[test]
fn image_of_an_older_generation_is_written_no_more_and_its_slice_hears_why() {
    for (format, ring) in
        [ImageFormat::Raw, ImageFormat::Qcow2].into_iter().flat_map(|it| [(it, true), (it, false)])
    {
        let folder = Folder::new();
        let path = folder.image(format, 4 << 20);
        let options = |generation| {
            let record = Some(writer(generation));
            ImageOptions { ring, record, ..ImageOptions::new(&path, format) }
        };
        let (told, heard) = channel();
        let old = options(1);
        old.fence.when_not_ours(move |why| told.send(why.cause().to_owned()).unwrap());
        let disk = open_again(&old);
        let write = |fill| DiskRequest::Write { sector: 8, data: vec![fill; 512] };
        assert_eq!(ask(&disk, write(1)), done());
        assert_eq!(ask(&disk, DiskRequest::Flush), done());
        let before = fs::read(&path).unwrap();

        let new = claim(&path, writer(2));
        sleep(Duration::from_millis(101));

        assert_eq!(ask(&disk, write(2)), DiskReply::Failed);
        assert_eq!(ask(&disk, DiskRequest::Flush), DiskReply::Failed);
        assert!(heard.recv().unwrap().contains("it was restored elsewhere"));
        let read = DiskRequest::Read { sector: 8, bytes: 512 };
        assert_eq!(ask(&disk, read), DiskReply::Done(vec![1; 512]));
        drop(disk);
        assert_eq!(fs::read(&path).unwrap(), before, "{format:?}, ring {ring}");
        drop(new);
        let refused = super::super::ImageDisk::open(&old);
        assert!(matches!(refused, Err(ImageError::Record { .. })), "{refused:?}");
        // Who only reads is nobody's enemy.
        open_again(&ImageOptions { read_only: true, ..options(1) });
        open_again(&options(2));
    }
}
