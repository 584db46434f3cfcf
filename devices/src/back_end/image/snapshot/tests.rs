//! States against a model, with a stop at each step, with writers that come back, and on file systems that cannot.

use super::super::tests::{Folder, Small, ask, done, open_again, written};
use super::super::{ImageDisk, Writer};
use super::*;
use crate::back_end::sample::Place;
use crate::back_end::{Disk, DiskReply, DiskRequest};
use migrate::saved::{decode, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const LIMIT: Duration = Duration::from_secs(60);
pub(super) const BYTES: u64 = 2 << 20;
const STEPS: [Step; 5] = [Step::Make, Step::Link, Step::Rename, Step::Protect, Step::SyncFolder];

pub(super) fn qcow2(path: &Path) -> ImageOptions {
    ImageOptions::new(path, ImageFormat::Qcow2)
}

/// All of a disk.
pub(super) fn all(disk: &dyn Disk) -> Vec<u8> {
    let bytes = u32::try_from(disk.shape().bytes()).unwrap();
    match ask(disk, DiskRequest::Read { sector: 0, bytes }) {
        DiskReply::Done(data) => data,
        reply => panic!("{reply:?}"),
    }
}

/// What is in a file of an image.
pub(super) fn contents(options: &ImageOptions, at: &Path) -> Vec<u8> {
    let at = Some(at.to_owned());
    all(&open_again(&ImageOptions { at, read_only: true, record: None, ..options.clone() }))
}

pub(super) fn write(disk: &dyn Disk, model: &mut [u8], (sector, sectors, fill): (u64, u64, u8)) {
    let data = written(fill, sectors * 512);
    let at = usize::try_from(sector * 512).unwrap();
    model[at..at + data.len()].copy_from_slice(&data);
    assert_eq!(ask(disk, DiskRequest::Write { sector, data }), done());
}

/// Again if another test is between fork and exec, and has copies of all locks.
pub(super) fn try_again<T>(
    mut run: impl FnMut() -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match run() {
            Err(
                SnapshotError::Image(
                    ImageError::Locked { .. }
                    | ImageError::Record { source: RecordError::InUse { .. }, .. },
                )
                | SnapshotError::Record(RecordError::InUse { .. }),
            ) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}

/// Closes a disk and freezes its image.
pub(super) fn freeze_closed(options: &ImageOptions, disk: ImageDisk, name: &str) -> Frozen {
    assert_eq!(ask(&disk, DiskRequest::Flush), done());
    let contents = Contents::of(&disk, &[], LIMIT).unwrap();
    drop(disk);
    try_again(|| freeze(options, name, &contents)).unwrap()
}

pub(super) fn revert_to(options: &ImageOptions, state: &DiskState, generation: u64) -> Reverted {
    try_again(|| revert(options, state, generation, LIMIT)).unwrap()
}

fn writes() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
    vec((0..BYTES / 512 - 64, 1..64_u64, any::<u8>()), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn state_is_what_was_there_and_what_was_abandoned_is_too(
        (first, second, third) in (writes(), writes(), writes()),
        ring in any::<bool>(),
    ) {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Qcow2, BYTES);
        let options = ImageOptions { ring, ..qcow2(&path) };
        let mut model = vec![0; usize::try_from(BYTES).unwrap()];
        let disk = open_again(&options);
        first.iter().for_each(|it| write(&disk, &mut model, *it));
        let one = freeze_closed(&options, disk, "one").state;
        let at_one = model.clone();

        let disk = open_again(&options);
        second.iter().for_each(|it| write(&disk, &mut model, *it));
        let two = freeze_closed(&options, disk, "two").state;
        let at_two = model.clone();
        let disk = open_again(&options);
        third.iter().for_each(|it| write(&disk, &mut model, *it));
        prop_assert!(all(&disk) == model);
        drop(disk);

        // To and fro, and each time something else is written.
        for (generation, (state, expected)) in
            (1..).zip([(&one, &at_one), (&two, &at_two), (&one, &at_one)])
        {
            let abandoned = revert_to(&options, state, generation).abandoned.unwrap();
            prop_assert!(contents(&options, &abandoned) == model);
            let disk = open_again(&options);
            prop_assert!(all(&disk) == *expected, "generation {}", generation);
            model.clone_from(expected);
            third.iter().for_each(|it| write(&disk, &mut model, *it));
            drop(disk);
            prop_assert!(contents(&options, &one.file_beside(&path)) == at_one);
            prop_assert!(contents(&options, &two.file_beside(&path)) == at_two);
        }
    }
}

/// Whether nothing is left of what is made beside an image.
fn no_next(path: &Path) -> bool {
    let names = fs::read_dir(path.parent().unwrap()).unwrap().map(|it| it.unwrap().file_name());
    names.into_iter().all(|name| !name.to_string_lossy().contains(NEXT))
}

/// A disk that was written, and its contents.
pub(super) fn disk_with(options: &ImageOptions, fill: u8) -> (ImageDisk, Vec<u8>) {
    let disk = open_again(options);
    let mut model = all(&disk);
    write(&disk, &mut model, (u64::from(fill), 40, fill));
    (disk, model)
}

/// Runs until before this step, as if the process ended there.
fn stopped_at(step: Step, run: impl FnOnce(Before<'_>)) -> bool {
    let before = move |next| {
        if next == step {
            resume_unwind(Box::new(()));
        }
    };
    catch_unwind(AssertUnwindSafe(|| run(&before))).is_err()
}

#[test]
fn image_is_readable_wherever_a_freeze_is_interrupted() {
    for step in STEPS {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Qcow2, BYTES);
        let options = qcow2(&path);
        let (disk, mut model) = disk_with(&options, 1);
        let there = Contents::of(&disk, &[], LIMIT).unwrap();
        drop(disk);
        // With a lock of another's fork it ends before the step.
        while !stopped_at(step, |before| {
            drop(freeze_before(&options, "cp", &there, before));
        }) {}

        let disk = open_again(&options);
        assert!(all(&disk) == model, "{step:?}");
        write(&disk, &mut model, (900, 9, 9));
        let name = match step {
            // As before, or its name was taken.
            Step::Make | Step::Link | Step::Rename => "cp",
            Step::Protect | Step::SyncFolder => "cp2",
        };
        let frozen = freeze_closed(&options, disk, name);
        assert!(contents(&options, &path) == model, "{step:?}");
        assert!(contents(&options, &frozen.state.file_beside(&path)) == model, "{step:?}");
    }
}

#[test]
fn image_is_readable_and_nothing_is_lost_wherever_a_revert_is_interrupted() {
    for step in [Step::Make, Step::Link, Step::Rename, Step::SyncFolder] {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Qcow2, BYTES);
        let options = qcow2(&path);
        let (disk, frozen) = disk_with(&options, 1);
        let state = freeze_closed(&options, disk, "cp").state;
        let (disk, later) = disk_with(&options, 2);
        drop(disk);
        while !stopped_at(step, |before| {
            drop(revert::revert_before(&options, &state, (5, LIMIT), before));
        }) {}

        let now = contents(&options, &path);
        assert!(now == if step == Step::SyncFolder { frozen.clone() } else { later.clone() });
        let reverted = revert_to(&options, &state, 5);
        assert!(contents(&options, &path) == frozen, "{step:?}");
        let abandoned = beside(&path, ".abandoned-5");
        assert!(contents(&options, &abandoned) == later, "{step:?}");
        assert!(contents(&options, &reverted.abandoned.unwrap()) == now, "{step:?}");
        // Who has the record knows that nobody is making anything.
        revert_to(&with_record(&path, 6), &state, 6);
        assert!(no_next(&path));
    }
}

#[test]
fn writer_of_a_former_generation_writes_into_what_was_abandoned() {
    for ring in [true, false] {
        let folder = Folder::new();
        let path = folder.image(ImageFormat::Qcow2, BYTES);
        let options = ImageOptions { ring, ..qcow2(&path) };
        let (disk, frozen) = disk_with(&options, 1);
        let state = freeze_closed(&options, disk, "cp").state;
        // It has the image open, and nobody takes its lock away.
        let (old, mut of_old) = disk_with(&options, 2);

        let abandoned = revert_to(&options, &state, 1).abandoned.unwrap();
        let (new, of_new) = disk_with(&options, 3);
        write(&old, &mut of_old, (100, 50, 77));
        assert_eq!(ask(&old, DiskRequest::Flush), done());

        assert!(all(&new) == of_new && all(&old) == of_old);
        drop((old, new));
        assert!(contents(&options, &path) == of_new);
        assert!(contents(&options, &abandoned) == of_old);
        assert!(contents(&options, &state.file_beside(&path)) == frozen);
    }
}

/// All files of a folder, with what is in them.
fn files(folder: &Folder) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn hold_it(options: &ImageOptions, state: &DiskState) -> Result<Held, SnapshotError> {
    try_again(|| hold(options, Some(state), LIMIT))
}

#[test]
fn image_that_somebody_has_open_is_not_held_and_one_that_is_held_is_not_opened() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    // The first life of a VM has no record.
    let (first, next) = (qcow2(&path), with_record(&path, 1));
    let (disk, _) = disk_with(&first, 1);
    let state = freeze_closed(&first, disk, "cp").state;
    let (disk, _) = disk_with(&first, 2);
    assert_eq!(ask(&disk, DiskRequest::Flush), done());
    let before = files(&folder);
    let refused = hold(&next, Some(&state), LIMIT).unwrap_err();
    assert!(refused.to_string().contains("is in use: end the VM"), "{refused}");
    assert!(matches!(hold(&next, None, LIMIT), Err(SnapshotError::InUse(_))));
    drop(disk);

    let held = hold_it(&next, &state).unwrap();
    let refused = ImageDisk::open(&first);
    assert!(matches!(refused, Err(ImageError::Locked { .. })), "{refused:?}");
    assert!(matches!(hold(&next, Some(&state), LIMIT), Err(SnapshotError::InUse(_))));
    drop(held);
    let other = DiskState { sample: [0; 32], ..state.clone() };
    let refused = hold_it(&next, &other).unwrap_err();
    assert!(matches!(refused, SnapshotError::Changed { .. }), "{refused}");
    assert!(files(&folder) == before, "somebody has written");
    revert_to(&next, &state, 1);
}

fn with_record(path: &Path, generation: u64) -> ImageOptions {
    ImageOptions { record: Some(Writer { vm: [1; 16], generation }), ..qcow2(path) }
}

/// A former generation may hang for ever, and finds out by the record before it writes.
#[test]
fn image_of_a_former_generation_with_a_record_is_held_and_of_no_other_one() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let old = with_record(&path, 5);
    let (disk, _) = disk_with(&old, 1);
    let state = freeze_closed(&old, disk, "cp").state;
    let (disk, _) = disk_with(&old, 2);
    assert_eq!(ask(&disk, DiskRequest::Flush), done());
    let before = files(&folder);
    hold(&with_record(&path, 6), Some(&state), LIMIT).unwrap();
    for generation in [4, 5] {
        let refused = hold(&with_record(&path, generation), Some(&state), LIMIT);
        assert!(matches!(refused, Err(SnapshotError::Record(_))), "{refused:?}");
    }
    let stranger = Some(Writer { vm: [2; 16], generation: 9 });
    let stranger = ImageOptions { record: stranger, ..qcow2(&path) };
    let refused = hold(&stranger, Some(&state), LIMIT);
    assert!(
        matches!(refused, Err(SnapshotError::Record(RecordError::OtherVm { .. }))),
        "{refused:?}"
    );
    // The very file is not fenced for who uses it as it is.
    let refused = hold(&with_record(&path, 6), None, LIMIT);
    assert!(matches!(refused, Err(SnapshotError::InUse(_))), "{refused:?}");
    assert!(files(&folder) == before, "somebody has written");
    drop(disk);
    // A record of somebody who is gone fences nobody who has the image open.
    let _user = open_again(&qcow2(&path));
    let refused = hold(&with_record(&path, 6), Some(&state), LIMIT);
    assert!(matches!(refused, Err(SnapshotError::InUse(_))), "{refused:?}");
}

#[test]
fn former_generation_that_wakes_freezes_nothing_of_the_next_one() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let of = |generation| {
        let record = Some(Writer { vm: [1; 16], generation });
        ImageOptions { record, ..qcow2(&path) }
    };
    let (old, new) = (of(1), of(2));
    let (disk, _) = disk_with(&old, 1);
    let there = Contents::of(&disk, &[], LIMIT).unwrap();
    let state = freeze_closed(&old, disk, "cp").state;
    revert_to(&new, &state, 2);
    let (disk, model) = disk_with(&new, 2);
    drop(disk);

    let refused = try_again(|| freeze(&old, "cp2", &there)).unwrap_err();
    let SnapshotError::Image(ImageError::Record { source, .. }) = refused else {
        panic!("{refused}")
    };
    assert!(matches!(source, RecordError::Overtaken { .. }), "{source}");
    let refused = try_again(|| revert(&old, &state, 1, LIMIT)).unwrap_err();
    assert!(matches!(refused, SnapshotError::Record(RecordError::Overtaken { .. })), "{refused}");
    assert!(contents(&new, &path) == model);
    // Without a record it is told by what it has open.
    let at = File::open(state.file_beside(&path)).unwrap();
    let at = Some(format!("/proc/self/fd/{}", at.as_raw_fd()).into());
    fs::set_permissions(state.file_beside(&path), Permissions::from_mode(0o644)).unwrap();
    let refused =
        try_again(|| freeze(&ImageOptions { at: at.clone(), ..qcow2(&path) }, "x", &there));
    assert!(matches!(refused, Err(SnapshotError::Replaced(_))), "{refused:?}");
}

#[test]
fn overlay_is_what_qemu_takes_for_one() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let options = qcow2(&path);
    let (disk, _) = disk_with(&options, 1);
    freeze_closed(&options, disk, "one");
    let (disk, model) = disk_with(&options, 2);
    freeze_closed(&options, disk, "two");
    drop(disk_with(&options, 2));
    let qemu = |arguments: &[&str]| {
        let done = Command::new("qemu-img").args(arguments).arg(&path).output();
        done.inspect_err(|_| needs::skip("there is no qemu-img")).ok()
    };
    let Some(check) = qemu(&["check", "-q"]) else { return };
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let info = qemu(&["info", "--backing-chain"]).unwrap();
    let text = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.status.success() && text.contains("backing file: Qcow2.img.two"), "{text}");
    assert!(text.contains("backing file: Qcow2.img.one"), "{text}");
    let raw = folder.path().join("raw");
    let convert = ["convert", "-O", "raw"];
    let done = Command::new("qemu-img").args(convert).args([&path, &raw]).output().unwrap();
    assert!(done.status.success());
    assert!(fs::read(raw).unwrap() == model, "qemu reads something else");
}

#[test]
fn folder_can_be_moved() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let (disk, model) = disk_with(&qcow2(&path), 1);
    let state = freeze_closed(&qcow2(&path), disk, "cp").state;
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    let moved = there.join(path.file_name().unwrap());
    // As cp does: other numbers, other times.
    fs::copy(&path, &moved).unwrap();
    fs::copy(state.file_beside(&path), state.file_beside(&moved)).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(state.file_beside(&path)).unwrap();
    assert!(contents(&qcow2(&moved), &moved) == model);
    // Only the state is there.
    fs::remove_file(&moved).unwrap();
    assert!(revert_to(&qcow2(&moved), &state, 1).abandoned.is_none());
    assert!(contents(&qcow2(&moved), &moved) == model);
}

#[test]
fn state_that_was_changed_is_found_out() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let options = qcow2(&path);
    let (disk, _) = disk_with(&options, 0);
    let state = freeze_closed(&options, disk, "cp").state;
    let file = state.file_beside(&path);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o444);
    assert_ne!(fs::metadata(&path).unwrap().mode() & 0o200, 0, "the overlay can be written");
    let why = |state: &DiskState| match try_again(|| verify(&options, state, LIMIT)) {
        Err(SnapshotError::Changed { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    try_again(|| verify(&options, &state, LIMIT)).unwrap();
    assert_eq!(why(&DiskState { modified_ns: 1, ..state.clone() }), "it was written since");
    let copy = DiskState { modified_ns: 1, inode: 1, ..state.clone() };
    try_again(|| verify(&options, &copy, LIMIT)).unwrap();
    assert_eq!(why(&DiskState { sample: [0; 32], ..copy.clone() }), "it contains something else");
    assert_eq!(why(&DiskState { bytes: 512, ..copy.clone() }), "the disk in it has another size");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let at = ImageOptions { at: Some(file.clone()), ..options.clone() };
    let disk = open_again(&at);
    write(&disk, &mut vec![0; 1 << 20], (0, 9, 200));
    drop(disk);
    try_again(|| verify(&options, &copy, LIMIT)).unwrap_err();
    fs::remove_file(&file).unwrap();
    assert!(matches!(verify(&options, &state, LIMIT), Err(SnapshotError::Missing(_))));
    let raw = ImageOptions { format: ImageFormat::Raw, ..options };
    assert!(matches!(verify(&raw, &state, LIMIT), Err(SnapshotError::Unlike { .. })));
}

#[test]
fn what_cannot_be_frozen_is_refused_and_goes_on() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let options = qcow2(&path);
    let (disk, model) = disk_with(&options, 1);
    let there = Contents::of(&disk, &[], LIMIT).unwrap();
    drop(disk);
    for name in ["", "a/b", "tessera", "tessera-next-0", "abandoned-1", "..", "ä", &"a".repeat(65)]
    {
        let refused = freeze(&options, name, &there);
        assert!(matches!(refused, Err(SnapshotError::Name(_))), "{name}: {refused:?}");
    }
    let other = beside(&path, ".mine");
    fs::write(&other, "of a user").unwrap();
    let refused = try_again(|| freeze(&options, "mine", &there));
    assert!(matches!(refused, Err(SnapshotError::Taken(_))), "{refused:?}");
    assert_eq!(fs::read(&other).unwrap(), b"of a user");
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let refused = try_again(|| freeze(&qcow2(&link), "cp", &there));
    assert!(matches!(refused, Err(SnapshotError::SymbolicLink(_))), "{refused:?}");
    let raw = folder.image(ImageFormat::Raw, BYTES);
    let raw = ImageOptions::new(&raw, ImageFormat::Raw);
    match try_again(|| freeze(&raw, "cp", &there)) {
        Err(error @ SnapshotError::Raw { .. }) => {
            assert!(error.to_string().contains("use a qcow2 image"), "{error}");
        }
        Ok(Frozen { state, file: None }) => assert_eq!(state.how, How::Clone),
        other => panic!("{other:?}"),
    }
    options.fence.shut();
    assert!(matches!(freeze(&options, "cp", &there), Err(SnapshotError::Over)));
    let options = qcow2(&path);
    assert!(contents(&options, &path) == model);
    let left = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains(NEXT)));
}

#[test]
fn image_that_nobody_writes_is_its_own_state() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let (disk, model) = disk_with(&qcow2(&path), 1);
    let there = Contents::of(&disk, &[], LIMIT).unwrap();
    drop(disk);
    fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    let frozen = try_again(|| freeze(&qcow2(&path), "cp", &there)).unwrap();
    assert!(frozen.file.is_none());
    assert_eq!((frozen.state.how, &frozen.state.file), (How::Unchanged, &None));
    let reverted = revert_to(&qcow2(&path), &frozen.state, 1);
    assert!(reverted.abandoned.is_none() && reverted.file.is_none());
    assert!(contents(&qcow2(&path), &path) == model);
    let copy = DiskState { sample: [0; 32], ..frozen.state };
    let changed = try_again(|| revert(&qcow2(&path), &copy, 1, LIMIT));
    assert!(matches!(changed, Err(SnapshotError::Changed { .. })), "{changed:?}");
}

#[test]
fn full_file_system_leaves_the_image_as_it_was() {
    let Some(small) = Small::mount("freeze") else { return };
    let folder = Folder::new();
    // What fits: the filler gives some room back first.
    fs::remove_file(small.filler()).unwrap();
    let path = beside(&small.image(), ".qcow2");
    fs::copy(folder.image(ImageFormat::Qcow2, BYTES), &path).unwrap();
    let options = qcow2(&path);
    let (disk, model) = disk_with(&options, 1);
    let there = Contents::of(&disk, &[], LIMIT).unwrap();
    drop(disk);
    let fill = || {
        let mut filler = File::create(small.filler()).unwrap();
        while io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    };
    fill();

    let refused = try_again(|| freeze(&options, "cp", &there)).unwrap_err();
    let SnapshotError::File { what: "make", source, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert!(contents(&options, &path) == model);
    assert!(!beside(&path, ".cp").exists() && no_next(&path));

    fs::remove_file(small.filler()).unwrap();
    let state = freeze_closed(&options, open_again(&options), "cp").state;
    fill();
    let refused = try_again(|| revert(&options, &state, 1, LIMIT)).unwrap_err();
    assert!(matches!(refused, SnapshotError::File { what: "make", .. }), "{refused:?}");
    assert!(contents(&options, &path) == model);
}

#[test]
fn folder_that_cannot_be_written_leaves_the_image_as_it_was() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let options = qcow2(&path);
    let (disk, model) = disk_with(&options, 1);
    let there = Contents::of(&disk, &[], LIMIT).unwrap();
    drop(disk);
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o666);
    mode(folder.path(), 0o555);
    let refused = thread::scope(|threads| {
        let freeze = || {
            // A thread of root's without its rights; others need none.
            let _ = rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534));
            try_again(|| freeze(&options, "cp", &there)).map(drop)
        };
        threads.spawn(freeze).join().unwrap()
    });
    mode(folder.path(), 0o755);
    let Err(SnapshotError::File { what: "make", source, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
    assert!(contents(&options, &path) == model);
}

#[test]
fn chain_is_as_long_as_may_be_and_no_longer() {
    let folder = Folder::new();
    let path = folder.image(ImageFormat::Qcow2, BYTES);
    let first = File::open(&path).unwrap();
    let mut model = vec![0; usize::try_from(BYTES).unwrap()];
    let mut there = None;
    for count in 1..IMAGES_MAX {
        let options = ImageOptions { ring: count % 2 == 0, ..qcow2(&path) };
        let disk = open_again(&options);
        let at = (count as u64 * 60, 5, count.to_le_bytes()[0]);
        write(&disk, &mut model, at);
        there = Some(Contents::of(&disk, &[], LIMIT).unwrap());
        freeze_closed(&options, disk, &format!("cp{count}"));
    }
    for ring in [true, false] {
        assert!(all(&open_again(&ImageOptions { ring, ..qcow2(&path) })) == model);
    }
    let refused = try_again(|| freeze(&qcow2(&path), "more", there.as_ref().unwrap()));
    assert!(matches!(refused, Err(SnapshotError::Deep { images: IMAGES_MAX, .. })), "{refused:?}");
    assert!(all(&open_again(&qcow2(&path))) == model);
    assert!(follow(&path, &first).unwrap().is_some_and(|file| chain::is_file(&path, &file)));
    let other = Folder::new();
    let other = File::open(other.image(ImageFormat::Qcow2, BYTES)).unwrap();
    assert!(follow(&path, &other).unwrap().is_none());
}

#[test]
fn image_that_was_made_to_name_files_gets_no_others_than_its_states() {
    for ring in [true, false] {
        let folder = Folder::new();
        let path = folder.image_over(ImageFormat::Qcow2, BYTES, Some("Qcow2.img.x"));
        let state = beside(&path, ".x");
        let refused = |why: &str| {
            let disk = ImageDisk::open(&ImageOptions { ring, ..qcow2(&path) }).map(drop);
            let ImageError::Format { source, .. } = disk.unwrap_err() else { panic!("{why}") };
            assert!(source.to_string().contains(why), "{source}");
        };
        // A key beside the image, which is no image.
        fs::write(&state, vec![5; 1 << 20]).unwrap();
        refused("another format");
        // One that is over itself, for ever.
        let about = fs::metadata(&path).unwrap();
        [&state, &path].into_iter().for_each(|file| fs::remove_file(file).unwrap());
        drop(overlay::make(&state, &state, (BYTES, 65_536), (&about, 0o644)).unwrap());
        drop(overlay::make(&path, &state, (BYTES, 65_536), (&about, 0o644)).unwrap());
        refused("more than 64 images");
    }
}

#[test]
fn raw_image_is_cloned_where_blocks_can_be_shared() {
    let Some(xfs) = Xfs::mount() else { return };
    let path = xfs.0.path().join("mounted/raw.img");
    File::create(&path).and_then(|file| file.set_len(BYTES)).unwrap();
    let options = ImageOptions::new(&path, ImageFormat::Raw);
    for step in [Step::Make, Step::Protect, Step::Link, Step::Rename, Step::SyncFolder] {
        let (disk, model) = disk_with(&options, 1);
        let there = Contents::of(&disk, &[], LIMIT).unwrap();
        drop(disk);
        let name = format!("{step:?}");
        while !stopped_at(step, |before| {
            drop(freeze_before(&options, &name, &there, before));
        }) {}
        assert!(contents(&options, &path) == model);
    }
    let (disk, frozen) = disk_with(&options, 2);
    let state = freeze_closed(&options, disk, "cp").state;
    assert_eq!(state.how, How::Clone);
    let (old, mut of_old) = disk_with(&options, 3);
    let abandoned = revert_to(&options, &state, 1).abandoned.unwrap();
    write(&old, &mut of_old, (200, 8, 8));
    drop(old);
    assert!(contents(&options, &path) == frozen);
    assert!(contents(&options, &abandoned) == of_old);
    assert_ne!(fs::metadata(&path).unwrap().mode() & 0o200, 0, "it can be written");
    drop(disk_with(&options, 4));
    revert_to(&options, &state, 2);
    assert!(contents(&options, &path) == frozen);
}

/// A file system that can share blocks. Goes away with its test.
struct Xfs(Folder);

impl Xfs {
    fn mount() -> Option<Self> {
        let folder = Folder::new();
        let (medium, mounted) = (folder.path().join("medium"), folder.path().join("mounted"));
        File::create(&medium).and_then(|file| file.set_len(320 << 20)).unwrap();
        fs::create_dir(&mounted).unwrap();
        let ok = |command: &mut Command| command.output().is_ok_and(|it| it.status.success());
        let made = ok(Command::new("mkfs.xfs").arg("-q").arg(&medium))
            && ok(Command::new("mount").args(["-o", "loop"]).args([&medium, &mounted]));
        if !made {
            needs::skip("no XFS can be made and mounted here (it needs root and xfsprogs)");
            return None;
        }
        Some(Self(folder))
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path().join("mounted")).output();
    }
}

fn state() -> DiskState {
    DiskState {
        path: "/srv/disk.qcow2".into(),
        format: ImageFormat::Qcow2,
        how: How::Overlay,
        file: Some("disk.qcow2.cp1".into()),
        bytes: 1 << 30,
        file_bytes: 200_000,
        inode: 7,
        modified_ns: 8,
        mode: 0o640,
        places: vec![Place::new(1, 64); 48],
        sample: [9; 32],
    }
}

#[test]
fn state_is_written_down_and_one_that_lies_is_refused() {
    let bytes = encode(&state()).unwrap();
    assert_eq!(decode::<DiskState>(&bytes).unwrap(), state());
    let file = |name: &str| DiskState { file: Some(name.into()), ..state() };
    for wrong in [
        file("/etc/shadow"),
        file("../disk.qcow2.cp1"),
        file("disk.qcow2.a/../../b"),
        file("disk.qcow2.tessera"),
        file("disk.qcow2"),
        DiskState { file: None, ..state() },
        DiskState { how: How::Unchanged, ..state() },
        DiskState { format: ImageFormat::Raw, ..state() },
        DiskState { bytes: 1000, ..state() },
        DiskState { bytes: 0, ..state() },
        DiskState { path: "/".into(), ..state() },
        DiskState { mode: 0o170_000, ..state() },
        DiskState { places: vec![state().places[0]; 65], ..state() },
    ] {
        assert!(encode(&wrong).is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn damaged_state_is_refused_or_fits_together(at in any::<prop::sample::Index>(), to: u8) {
        let mut bytes = encode(&state()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(state) = decode::<DiskState>(&bytes) {
            migrate::SavedState::check(&state).unwrap();
        }
    }
}
