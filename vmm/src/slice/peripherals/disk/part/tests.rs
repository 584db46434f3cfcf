//! Images that are closed, opened elsewhere, frozen and restored.

use super::super::super::model::BackEnd;
use super::super::DiskFormat;
use super::*;
use devices::back_end::SwitchDisk;
use devices::back_end::image::snapshot::How;
use devices::back_end::image::{OnFull, Writer};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::id;

const LIMIT: Duration = Duration::from_secs(30);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tessera-part-{name}-{}", id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens with what is not usual.
#[derive(Clone, Copy)]
struct As<'a> {
    lent: Option<&'a LentThing>,
    writer: Option<Writer>,
    restored: Option<&'a DiskState>,
}

const PLAIN: As<'_> = As { lent: None, writer: None, restored: None };

fn with<T>(how: &As<'_>, open: impl FnOnce(&Opening<'_>) -> T) -> T {
    let (fence, panicked) = (Arc::default(), Arc::default());
    let (number, vcpus, on_full) = (0, 1, OnFull::Report);
    let (fence, panicked) = (&fence, &panicked);
    let (moves, As { lent, writer, restored }) = (true, *how);
    let cloned = false;
    open(&Opening {
        number,
        vcpus,
        fence,
        on_full,
        panicked,
        moves,
        lent,
        writer,
        restored,
        cloned,
    })
}

fn spec(path: &Path, format: DiskFormat) -> DiskSpec {
    DiskSpec { path: path.into(), format, read_only: false }
}

fn part(path: &Path) -> DiskPart {
    with(&PLAIN, |opening| DiskPart::new(&spec(path, DiskFormat::Raw), opening).unwrap())
}

fn ask(disk: &dyn Disk, request: DiskRequest) -> DiskReply {
    let (told, answer) = channel();
    disk.submit(request, Box::new(move |reply| told.send(reply).unwrap()));
    answer.recv_timeout(LIMIT).unwrap()
}

fn write(sector: u64, byte: u8) -> DiskRequest {
    DiskRequest::Write { sector, data: vec![byte; 512] }
}

/// An image under two names, and the disk of a VM that has it by the first.
fn two(folder: &Folder) -> (DiskPart, DiskPart, Arc<SwitchDisk>) {
    let [here, there] = ["here", "there"].map(|name| folder.0.join(name));
    fs::write(&here, vec![1; 1 << 20]).unwrap();
    fs::hard_link(&here, &there).unwrap();
    let [here, there] = [here, there].map(|path| part(&path));
    let image = here.open_image(&here.held()).unwrap();
    let switch = Arc::new(SwitchDisk::new(image.shape(), Arc::new(image)));
    (here, there, switch)
}

#[test]
fn image_is_open_at_one_place_and_has_what_was_written_at_the_other() {
    let folder = Folder::new("moves");
    let (here, there, disk) = two(&folder);
    let switch = Switch::Disk(Arc::clone(&disk));
    assert_eq!(here.sample().unwrap(), there.sample().unwrap());
    there.check().unwrap();
    assert_eq!(ask(&*disk, write(777, 9)), DiskReply::Done(Vec::new()));
    let closed = here.close(&switch, LIMIT).unwrap();
    there.open(&closed, LIMIT).unwrap();
    // The lock says so too.
    assert!(matches!(here.reopen(&switch), Err(PartError::Open(_))));
    let image = lock(&there.aside).take().unwrap();
    let read = DiskRequest::Read { sector: 777, bytes: 512 };
    assert_eq!(ask(&image, read), DiskReply::Done(vec![9; 512]));
}

#[test]
fn image_that_has_not_moved_is_open_again_and_no_request_is_lost() {
    let folder = Folder::new("stays");
    let (here, there, disk) = two(&folder);
    let switch = Switch::Disk(Arc::clone(&disk));
    let ClosedPart::Disk { shape, places, .. } = here.close(&switch, LIMIT).unwrap() else {
        panic!("a disk")
    };
    let other = ClosedPart::Disk { shape, places, sample: [0; 32] };
    assert!(matches!(there.open(&other, LIMIT), Err(PartError::Differs(_))));
    // Other slices go on earlier than this one.
    let (told, answer) = channel();
    disk.submit(write(5, 3), Box::new(move |reply| told.send(reply).unwrap()));
    assert!(matches!(here.close(&switch, LIMIT), Err(PartError::Turn)));
    here.reopen(&switch).unwrap();
    assert_eq!(answer.recv_timeout(LIMIT), Ok(DiskReply::Done(Vec::new())));
    let read = DiskRequest::Read { sector: 5, bytes: 512 };
    assert_eq!(ask(&*disk, read), DiskReply::Done(vec![3; 512]));
}

#[test]
fn slice_that_was_given_up_opens_nothing() {
    let folder = Folder::new("given-up");
    let (here, there, disk) = two(&folder);
    let switch = Switch::Disk(Arc::clone(&disk));
    let closed = here.close(&switch, LIMIT).unwrap();
    for part in [&here, &there] {
        part.options.fence.shut();
    }
    assert!(matches!(here.reopen(&switch), Err(PartError::Open(_))));
    assert!(matches!(there.open(&closed, LIMIT), Err(PartError::Open(_))));
    // Nobody holds its lock.
    let here = part(&folder.0.join("here"));
    here.open_image(&here.held()).unwrap();
}

#[test]
fn copy_has_the_same_sample_until_the_guest_writes() {
    let folder = Folder::new("copy");
    let (here, _, disk) = two(&folder);
    let copy = folder.0.join("copy");
    fs::copy(folder.0.join("here"), &copy).unwrap();
    let copy = part(&copy);
    assert_eq!(here.sample().unwrap(), copy.sample().unwrap());
    // Where nobody would look by chance.
    assert_eq!(ask(&*disk, write(1001, 9)), DiskReply::Done(Vec::new()));
    let closed = here.close(&Switch::Disk(disk), LIMIT).unwrap();
    assert!(matches!(copy.open(&closed, LIMIT), Err(PartError::Differs(_))));
}

/// An empty qcow2 image of 1 MiB: head, table of reference counts, reference counts, table of clusters.
fn qcow2(path: &Path) {
    const CLUSTER: u64 = 1 << 16;
    let mut bytes = vec![0; 4 << 16];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    put(20, &16_u32.to_be_bytes());
    put(24, &(1_u64 << 20).to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &(3 * CLUSTER).to_be_bytes());
    put(48, &CLUSTER.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(1 << 16, &(2 * CLUSTER).to_be_bytes());
    put(2 << 16, &[0, 1, 0, 1, 0, 1, 0, 1]);
    fs::write(path, bytes).unwrap();
}

fn open(path: &Path, how: &As<'_>) -> Result<(Arc<SwitchDisk>, Arc<dyn RealPart>), OpenError> {
    let mut left = 200;
    loop {
        let opened = with(how, |it| {
            let open = spec(path, DiskFormat::Qcow2).open_part(it)?;
            open.go_on()?;
            Ok(open)
        });
        match opened {
            // Another test is between fork and exec, and has all locks.
            Err(OpenError::Open { source, .. })
                if left > 0 && source.to_string().contains("in use") =>
            {
                left -= 1;
                sleep(Duration::from_millis(5));
            }
            opened => return opened.map(|open| (Arc::clone(&open.switch), open.kept().unwrap())),
        }
    }
}

fn read(disk: &dyn Disk, sector: u64) -> u8 {
    match ask(disk, DiskRequest::Read { sector, bytes: 512 }) {
        DiskReply::Done(data) => {
            assert!(data.iter().all(|byte| *byte == data[0]));
            data[0]
        }
        reply => panic!("{reply:?}"),
    }
}

fn freeze(part: &Arc<dyn RealPart>, disk: &Arc<SwitchDisk>, name: &str) -> DiskState {
    part.freeze(&Switch::Disk(Arc::clone(disk)), (name, false), LIMIT).unwrap().unwrap()
}

#[test]
fn disk_goes_on_after_it_was_frozen_and_is_restored_as_it_was() {
    let folder = Folder::new("freeze");
    let path = folder.0.join("disk");
    qcow2(&path);
    let writer = |generation| Some(Writer { vm: [3; 16], generation });
    let (disk, part) = open(&path, &As { writer: writer(0), ..PLAIN }).unwrap();
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    let state = freeze(&part, &disk, "one");
    assert_eq!(state.file.as_deref(), Some("disk.one"));
    assert_eq!(read(&*disk, 5), 1);
    assert_eq!(ask(&*disk, write(5, 2)), DiskReply::Done(Vec::new()));
    freeze(&part, &disk, "two");
    assert_eq!(ask(&*disk, write(6, 3)), DiskReply::Done(Vec::new()));

    // The former generation is still there, as after SIGSTOP.
    let restored = As { writer: writer(1), restored: Some(&state), ..PLAIN };
    let (new, _) = open(&path, &restored).unwrap();
    assert_eq!((read(&*new, 5), read(&*new, 6)), (1, 0));
    assert_eq!(ask(&*new, write(5, 9)), DiskReply::Done(Vec::new()));
    sleep(Duration::from_millis(101));
    assert_eq!(ask(&*disk, write(5, 8)), DiskReply::Failed);
    let refused = part.freeze(&Switch::Disk(Arc::clone(&disk)), ("three", false), LIMIT);
    assert!(matches!(refused, Err(PartError::NotDurable)), "{refused:?}");
    assert_eq!(read(&*new, 5), 9);
    drop((disk, part, new));
    let refused = open(&path, &As { writer: writer(0), ..PLAIN }).map(drop).unwrap_err();
    assert!(one_line(&refused).contains("it was restored elsewhere"), "{}", one_line(&refused));
}

/// A VM that has begun has no record. Its first state makes one, which fences it although it stands still with its image open.
#[test]
fn process_of_the_first_generation_is_fenced_from_its_first_state_on() {
    let folder = Folder::new("first");
    let path = folder.0.join("disk");
    qcow2(&path);
    let (disk, part) = open(&path, &PLAIN).unwrap();
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    let record = folder.0.join("disk.tessera");
    assert!(!record.exists());
    part.is_written_by(Writer { vm: [3; 16], generation: 0 });
    let state = freeze(&part, &disk, "one");
    assert!(record.exists());
    assert_eq!(ask(&*disk, write(5, 2)), DiskReply::Done(Vec::new()));

    let writer = Some(Writer { vm: [3; 16], generation: 1 });
    let restored = As { writer, restored: Some(&state), ..PLAIN };
    let (new, _) = open(&path, &restored).unwrap();
    assert_eq!(read(&*new, 5), 1);
    sleep(Duration::from_millis(101));
    assert_eq!(ask(&*disk, write(5, 8)), DiskReply::Failed);
    assert_eq!(read(&*new, 5), 1);
}

/// Where no record can be, the image goes on without one, and there is no state.
#[test]
fn disk_without_a_record_beside_it_goes_on_and_has_no_state() {
    let folder = Folder::new("no-record");
    let path = folder.0.join("disk");
    qcow2(&path);
    fs::create_dir(folder.0.join("disk.tessera")).unwrap();
    let (disk, part) = open(&path, &PLAIN).unwrap();
    part.is_written_by(Writer { vm: [3; 16], generation: 0 });
    let refused = part.freeze(&Switch::Disk(Arc::clone(&disk)), ("one", false), LIMIT).unwrap_err();
    assert!(one_line(&refused).contains("the record"), "{refused:?}");
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    assert_eq!(read(&*disk, 5), 1);
}

#[test]
fn disk_that_cannot_be_frozen_is_open_as_it_was() {
    let folder = Folder::new("not-frozen");
    let path = folder.0.join("disk");
    qcow2(&path);
    fs::write(folder.0.join("disk.mine"), "of a user").unwrap();
    let (disk, part) = open(&path, &PLAIN).unwrap();
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    let refused = part.freeze(&Switch::Disk(Arc::clone(&disk)), ("mine", false), LIMIT);
    assert!(matches!(refused, Err(PartError::Snapshot(SnapshotError::Taken(_)))), "{refused:?}");
    assert_eq!(read(&*disk, 5), 1);
    assert_eq!(ask(&*disk, write(6, 2)), DiskReply::Done(Vec::new()));
    freeze(&part, &disk, "other");
    assert_eq!((read(&*disk, 5), read(&*disk, 6)), (1, 2));
    let nowhere = part.freeze(&Switch::Nothing, ("x", false), LIMIT);
    assert!(matches!(nowhere, Err(PartError::Turn)));
}

/// At each cut it is closed for a moment, and for longer while it moves to another host. Somebody deletes a checkpoint just then.
#[test]
fn disk_that_is_closed_for_a_moment_can_be_opened_again_while_others_merge_below_it() {
    let folder = Folder::new("closed");
    let path = folder.0.join("disk");
    qcow2(&path);
    let writer = Some(Writer { vm: [3; 16], generation: 0 });
    let (disk, part) = open(&path, &As { writer, ..PLAIN }).unwrap();
    for (name, byte) in [("one", 1), ("two", 2)] {
        assert_eq!(ask(&*disk, write(5, byte)), DiskReply::Done(Vec::new()));
        freeze(&part, &disk, name);
    }
    let switch = Switch::Disk(Arc::clone(&disk));
    part.close(&switch, LIMIT).unwrap();
    // As `tessera checkpoint delete` does.
    assert!(snapshot::release(&path, "one").unwrap());
    let opened = RefCell::new(None);
    let meanwhile = || {
        let open = || part.reopen(&switch).map_err(|error| one_line(&error));
        opened.borrow_mut().get_or_insert_with(open);
        true
    };
    let unused = ImageOptions::new(&path, ImageFormat::Qcow2);
    let tidied = snapshot::tidy_unused(&unused, &meanwhile);
    meanwhile();
    assert_eq!(opened.into_inner(), Some(Ok(())), "{tidied:?}");
    assert_eq!(read(&*disk, 5), 2);
}

fn lend(path: &Path) -> LentThing {
    (DiskSpec::LENDING.unwrap().open)(&format!("rw:{}", path.display())).unwrap()
}

/// What was lent is one of the states that are merged away meanwhile.
#[test]
fn host_that_stands_by_follows_a_disk_whose_states_come_and_go() {
    let folder = Folder::new("long-life");
    let path = folder.0.join("disk");
    qcow2(&path);
    let first = As { writer: Some(Writer { vm: [3; 16], generation: 0 }), ..PLAIN };
    let (disk, here) = open(&path, &first).unwrap();
    freeze(&here, &disk, "c0");
    // By now the image lies over a state.
    let lent = lend(&path);
    let spec = spec(&path, DiskFormat::Qcow2);
    let there =
        with(&As { lent: Some(&lent), ..first }, |opening| DiskPart::new(&spec, opening).unwrap());
    for number in 1..6_u8 {
        assert_eq!(ask(&*disk, write(u64::from(number), number)), DiskReply::Done(Vec::new()));
        freeze(&here, &disk, &format!("c{number}"));
        let released = [format!("c{}", number - 1)];
        here.tidy(&released);
        let mark = folder.0.join(format!("disk.c{}", number - 1));
        let deadline = Instant::now() + LIMIT;
        while mark.exists() {
            assert!(Instant::now() < deadline, "it is not merged");
            here.tidy(&[]);
            sleep(Duration::from_millis(5));
        }
    }
    let switch = Switch::Disk(Arc::clone(&disk));
    let closed = here.close(&switch, LIMIT).unwrap();
    there.open(&closed, LIMIT).unwrap();
    let image = lock(&there.aside).take().unwrap();
    assert!(!image.shape().read_only);
    (1..6_u8).for_each(|number| assert_eq!(read(&image, u64::from(number)), number));
}

#[test]
fn host_that_stands_by_opens_the_overlay_of_a_disk_that_was_frozen_elsewhere() {
    let folder = Folder::new("follows");
    let path = folder.0.join("disk");
    qcow2(&path);
    let lent = lend(&path);
    let lent = As { lent: Some(&lent), ..PLAIN };
    let spec = spec(&path, DiskFormat::Qcow2);
    let there = with(&lent, |opening| DiskPart::new(&spec, opening).unwrap());
    let (disk, here) = open(&path, &PLAIN).unwrap();
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    let state = freeze(&here, &disk, "one");
    assert_eq!(ask(&*disk, write(6, 2)), DiskReply::Done(Vec::new()));
    there.check().unwrap();
    let closed = here.close(&Switch::Disk(Arc::clone(&disk)), LIMIT).unwrap();
    there.open(&closed, LIMIT).unwrap();
    let image = lock(&there.aside).take().unwrap();
    assert_eq!((read(&image, 5), read(&image, 6)), (1, 2));
    drop(image);

    // A host that looks before another one has reverted the image.
    let restored = As { restored: Some(&state), ..lent };
    let there = with(&restored, |opening| spec.stand_by(opening).unwrap().1);
    let (disk, here) = open(&path, &restored).unwrap();
    assert_eq!((read(&*disk, 5), read(&*disk, 6)), (1, 0));
    assert_eq!(ask(&*disk, write(7, 4)), DiskReply::Done(Vec::new()));
    let closed = here.close(&Switch::Disk(disk), LIMIT).unwrap();
    there.open(&closed, LIMIT).unwrap();
    there.let_go();
}

/// All files of a folder, with what is in them.
fn files(folder: &Folder) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn image_of_a_vm_that_is_not_restored_stays_as_it_was() {
    let folder = Folder::new("refused");
    let path = folder.0.join("disk");
    qcow2(&path);
    let (disk, part) = open(&path, &PLAIN).unwrap();
    assert_eq!(ask(&*disk, write(5, 1)), DiskReply::Done(Vec::new()));
    let state = freeze(&part, &disk, "one");
    assert_eq!(ask(&*disk, write(5, 2)), DiskReply::Done(Vec::new()));
    assert_eq!(ask(&*disk, DiskRequest::Flush), DiskReply::Done(Vec::new()));
    let sample = part.sample().unwrap();
    let before = files(&folder);
    let writer = Some(Writer { vm: [3; 16], generation: 1 });
    let restored = As { writer, restored: Some(&state), ..PLAIN };
    let spec = spec(&path, DiskFormat::Qcow2);
    let refused = one_line(&with(&restored, |it| spec.open_part(it)).unwrap_err());
    assert!(refused.contains("is in use"), "it is open: {refused}");
    drop((disk, part));
    let all_locks = |error: &OpenError| one_line(error).contains("is in use");
    let open_disk = loop {
        match with(&restored, |it| spec.open_part(it)) {
            Err(error) if all_locks(&error) => sleep(Duration::from_millis(5)),
            opened => break opened.unwrap(),
        }
    };
    // What other slices are told of it is of the state.
    assert!(!open_disk.switch.shape().read_only && open_disk.switch.behind().is_none());
    assert_ne!(open_disk.part.sample().unwrap(), sample);
    let (told, answer) = channel();
    open_disk.switch.submit(write(7, 3), Box::new(move |reply| told.send(reply).unwrap()));
    // Some other slice has not agreed.
    drop(open_disk);
    assert_eq!(answer.recv(), Ok(DiskReply::Failed));
    assert!(files(&folder) == before, "somebody has written");

    let (disk, _) = open(&path, &restored).unwrap();
    assert_eq!((read(&*disk, 5), read(&*disk, 7)), (1, 0));
    assert!(folder.0.join("disk.abandoned-1").exists());
}

/// Where blocks cannot be shared a raw image has no state but itself.
#[test]
fn raw_image_that_a_vm_has_left_is_compared_when_it_goes_on() {
    let folder = Folder::new("left");
    let path = folder.0.join("disk");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let device = spec(&path, DiskFormat::Raw);
    let disk = with(&PLAIN, |opening| device.open_part(opening).unwrap());
    assert_eq!(ask(&*disk.switch, write(777, 7)), DiskReply::Done(Vec::new()));
    let switch = Switch::Disk(Arc::clone(&disk.switch));
    let state = disk.part.freeze(&switch, ("one", true), LIMIT).unwrap().unwrap();
    if state.how == How::Clone {
        needs::skip("files here can share blocks");
        return;
    }
    assert_eq!((state.how, &state.file), (How::Left, &None));
    let refused = disk.part.freeze(&switch, ("two", false), LIMIT).unwrap_err();
    assert!(one_line(&refused).contains("(--end)"), "{refused}");
    drop((disk, switch));
    let writer = Some(Writer { vm: [3; 16], generation: 1 });
    let restored = As { writer, restored: Some(&state), ..PLAIN };
    let go_on = || loop {
        let opened = with(&restored, |it| device.open_part(it)).and_then(|disk| {
            disk.go_on()?;
            Ok(disk)
        });
        match opened {
            Err(error) if one_line(&error).contains("in use") => sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    };
    let disk = go_on().unwrap();
    assert_eq!((read(&*disk.switch, 777), read(&*disk.switch, 5)), (7, 1));
    drop(disk);
    // Nothing was written.
    drop(go_on().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[777 * 512 + 9] = 8;
    fs::write(&path, bytes).unwrap();
    let refused = one_line(&go_on().unwrap_err());
    assert!(refused.contains("contains something else"), "{refused}");
    assert!(refused.contains("--no-disk-guarantee"), "{refused}");
}

#[test]
fn image_that_is_not_the_one_that_is_lent_is_not_reverted() {
    let folder = Folder::new("not-lent");
    let path = folder.0.join("disk");
    qcow2(&path);
    let (disk, part) = open(&path, &PLAIN).unwrap();
    let state = freeze(&part, &disk, "one");
    drop((disk, part));
    let other = folder.0.join("other");
    qcow2(&other);
    let lent = lend(&other);
    let restored = As { lent: Some(&lent), restored: Some(&state), ..PLAIN };
    let refused = one_line(&open(&path, &restored).map(drop).unwrap_err());
    assert!(refused.contains("is another file than the one that is lent"), "{refused}");
    assert!(!folder.0.join("disk.abandoned-0").exists());
}
