//! A disk over a long life, with checkpoints that come and go, interruptions, and others that are in the way.

use super::super::super::tests::{Folder, ask, done, open_again};
use super::super::super::{ImageDisk, ImageFormat};
use super::super::tests::{
    BYTES, LIMIT, all, contents, disk_with, freeze_closed, qcow2, revert_to, try_again, write,
};
use super::super::{
    Claim, DiskState, Step, chain, cloned_from, give_up, hold, image_of_clone, overlay, release,
    revert, verify,
};
use super::*;
use crate::back_end::DiskRequest;
use std::collections::VecDeque;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const VM: [u8; 16] = [7; 16];

fn options(path: &Path, generation: u64) -> ImageOptions {
    ImageOptions { record: Some(Writer { vm: VM, generation }), ..qcow2(path) }
}

/// Numbers that look as if they were drawn (Marsaglia, Xorshift RNGs).
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A disk, what is to be in it, and in its newest checkpoints.
struct Life {
    /// It goes away with this.
    _folder: Folder,
    path: PathBuf,
    generation: u64,
    number: u64,
    disk: Option<ImageDisk>,
    model: Vec<u8>,
    kept: VecDeque<(DiskState, Vec<u8>)>,
    drawn: Drawn,
}

impl Life {
    fn new(seed: u64) -> Self {
        let folder = Folder::in_memory();
        let path = folder.image(ImageFormat::Qcow2, BYTES);
        let mut life = Self {
            _folder: folder,
            path,
            generation: 0,
            number: 0,
            disk: None,
            model: vec![0; usize::try_from(BYTES).unwrap()],
            kept: VecDeque::new(),
            drawn: Drawn(seed),
        };
        life.open();
        life
    }

    fn options(&self) -> ImageOptions {
        options(&self.path, self.generation)
    }

    fn open(&mut self) {
        self.disk = Some(open_again(&self.options()));
    }

    fn change(&mut self) {
        let disk = self.disk.as_ref().unwrap();
        for _ in 0..self.drawn.below(10) {
            let (sector, sectors) = (self.drawn.below(BYTES / 512 - 64), 1 + self.drawn.below(64));
            if self.drawn.below(4) > 0 {
                let fill = u8::try_from(self.drawn.below(256)).unwrap();
                write(disk, &mut self.model, (sector, sectors, fill));
                continue;
            }
            let unmap = self.drawn.below(2) == 0;
            let zeroes = DiskRequest::WriteZeroes { sector, sectors, unmap };
            assert_eq!(ask(disk, zeroes), done());
            let at = usize::try_from(sector * 512).unwrap();
            self.model[at..at + usize::try_from(sectors * 512).unwrap()].fill(0);
        }
    }

    /// A checkpoint, after which only the newest two are needed.
    fn checkpoint(&mut self) {
        self.number += 1;
        let disk = self.disk.take().unwrap();
        let name = format!("c{}", self.number);
        let state = freeze_closed(&self.options(), disk, &name).state;
        self.kept.push_back((state, self.model.clone()));
        self.open();
        while self.kept.len() > 2 {
            let (state, _) = self.kept.pop_front().unwrap();
            assert!(release(&self.path, state.name().unwrap()).unwrap());
        }
    }

    fn tidy(&self) -> Tidied {
        try_again(|| tidy(&self.options(), &|| true)).unwrap()
    }

    /// The disk and both checkpoints are what they have to be.
    #[track_caller]
    fn check(&self) {
        assert!(all(self.disk.as_ref().unwrap()) == self.model, "the open disk");
        let options = ImageOptions { record: None, ..self.options() };
        for (state, model) in &self.kept {
            verify(&options, state, LIMIT).unwrap();
            assert!(contents(&options, &state.file_beside(&self.path)) == *model, "{state:?}");
        }
    }

    fn images(&self) -> usize {
        chain::images(&self.path, &File::open(&self.path).unwrap()).unwrap().len()
    }
}

#[test]
fn disk_of_a_long_life_has_a_short_chain_and_both_checkpoints() {
    let mut life = Life::new(88_172_645_463_325_252);
    let mut merged = 0;
    for round in 0..200 {
        life.change();
        life.checkpoint();
        life.change();
        // The guest runs meanwhile, with the former files open.
        merged += life.tidy().merged;
        life.check();
        life.change();
        life.check();
        assert!(life.images() <= 4, "{} images", life.images());
        if round % 25 == 24 {
            // It is lost, and goes on from its newest checkpoint.
            let (state, model) = life.kept.back().unwrap().clone();
            let former = life.disk.take();
            // After that it may not write any more.
            assert_eq!(ask(former.as_ref().unwrap(), DiskRequest::Flush), done());
            life.generation += 1;
            let abandoned = revert_to(&life.options(), &state, life.generation).abandoned.unwrap();
            let what_was = std::mem::replace(&mut life.model, model);
            assert!(all(former.as_ref().unwrap()) == what_was);
            drop(former);
            assert!(
                contents(&ImageOptions { record: None, ..life.options() }, &abandoned) == what_was
            );
            fs::remove_file(abandoned).unwrap();
            life.open();
            life.check();
        }
    }
    assert!(merged > 150, "{merged} were merged");
    drop(life.disk.take());
    let checked = Command::new("qemu-img").args(["check", "-q"]).arg(&life.path).output();
    match checked {
        Ok(checked) => {
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        }
        Err(_) => needs::skip("there is no qemu-img"),
    }
}

/// Its losses leave files behind, which nobody takes away.
#[test]
fn chain_stays_bounded_when_a_vm_is_lost_again_and_again() {
    let mut life = Life::new(362_436_069);
    for _ in 0..40 {
        life.change();
        life.checkpoint();
        life.tidy();
        let (state, model) = life.kept.back().unwrap().clone();
        drop(life.disk.take());
        life.generation += 1;
        revert_to(&life.options(), &state, life.generation);
        life.model = model;
        life.open();
        life.check();
        assert!(life.images() <= 4 + users::ABANDONED_MAX, "{} images", life.images());
    }
}

/// What somebody stopped at the given step, counted over all steps.
fn stopped_at(life: &Life, at: u32) -> bool {
    let count = AtomicU32::new(0);
    let before = |_: TidyStep| {
        if count.fetch_add(1, Ordering::Relaxed) == at {
            resume_unwind(Box::new(()));
        }
    };
    let options = life.options();
    let who = Who::User(options.record);
    let run = || drop(tidy_before(&options, who, (&|| true, &before)));
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

#[test]
fn everything_is_readable_wherever_a_merge_is_interrupted() {
    let mut steps = 0;
    loop {
        let mut life = Life::new(521_288_629);
        for _ in 0..3 {
            life.change();
            life.checkpoint();
        }
        life.change();
        let stopped = stopped_at(&life, steps);
        life.check();
        // Others that open it then find the same.
        drop(life.disk.take());
        life.open();
        life.check();
        life.change();
        life.checkpoint();
        life.tidy();
        life.check();
        assert!(life.images() <= 4, "{} images", life.images());
        assert!(users::released(&life.path).unwrap().len() <= 1);
        if !stopped {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 8, "only {steps} steps");
}

#[test]
fn merge_that_is_to_stop_leaves_all_as_it_was() {
    let mut life = Life::new(5);
    for _ in 0..3 {
        write(life.disk.as_ref().unwrap(), &mut life.model, (9, 9, 9));
        life.checkpoint();
    }
    let asked = AtomicU32::new(0);
    let goes_on = || asked.fetch_add(1, Ordering::Relaxed) == 0;
    assert_eq!(try_again(|| tidy(&life.options(), &goes_on)).unwrap().merged, 0);
    life.check();
    assert_eq!(life.images(), 4);
    assert_eq!(life.tidy(), Tidied { merged: 1, ..Tidied::default() });
    life.check();
    assert_eq!(life.images(), 3);
}

#[test]
fn state_that_was_released_is_never_gone_on_from() {
    let mut life = Life::new(6);
    life.change();
    life.checkpoint();
    let (state, _) = life.kept[0].clone();
    drop(life.disk.take());
    let options = options(&life.path, 1);
    assert!(release(&life.path, "c1").unwrap());
    assert!(!release(&life.path, "c2").unwrap(), "there is none");
    assert!(matches!(release(&life.path, "../x"), Err(SnapshotError::Name(_))));
    for refused in [
        try_again(|| verify(&options, &state, LIMIT)),
        try_again(|| revert(&options, &state, 1, LIMIT).map(drop)),
        try_again(|| hold(&options, Some(&state), LIMIT).map(drop)),
    ] {
        assert!(matches!(refused, Err(SnapshotError::Released(_))), "{refused:?}");
    }
}

/// One that stands still in the middle of a merge has its lock, and may go on later.
#[test]
fn one_merges_at_a_time() {
    let mut life = Life::new(7);
    for _ in 0..3 {
        write(life.disk.as_ref().unwrap(), &mut life.model, (9, 9, 9));
        life.checkpoint();
    }
    let refused = std::cell::Cell::new(false);
    let newer = options(&life.path, 1);
    let before = |step| {
        if step == TidyStep::Rename {
            // Another generation has taken over meanwhile.
            drop(GenerationRecord::claim(&life.path, newer.record.unwrap()).unwrap());
            let other = tidy(&newer, &|| true);
            refused.set(matches!(other, Err(SnapshotError::Untidy(_))));
        }
    };
    let mine = life.options();
    let over = tidy_before(&mine, Who::User(mine.record), (&|| true, &before)).unwrap_err();
    assert!(refused.get());
    assert!(matches!(over, SnapshotError::Record(_)), "{over:?}");
    assert_eq!(try_again(|| tidy(&newer, &|| true)).unwrap().merged, 1);
    life.generation = 1;
    drop(life.disk.take());
    life.open();
    life.check();
}

#[test]
fn image_that_somebody_uses_is_left_to_its_user() {
    let mut life = Life::new(8);
    for _ in 0..3 {
        life.change();
        life.checkpoint();
    }
    let unused = qcow2(&life.path);
    let refused = tidy_unused(&unused, &|| true);
    assert!(matches!(refused, Err(SnapshotError::Untidy(_))), "{refused:?}");
    drop(life.disk.take());
    let tidied = loop {
        match tidy_unused(&unused, &|| true) {
            // Of another test's fork.
            Err(SnapshotError::Untidy(_)) => {}
            tidied => break tidied.unwrap(),
        }
    };
    assert_eq!(tidied, Tidied { merged: 1, ..Tidied::default() });
    life.open();
    life.check();
}

/// An image of a user below, of other clusters and of no business of ours.
#[test]
fn image_below_the_first_state_is_never_written() {
    let folder = Folder::new();
    let golden = folder.path().join("golden");
    fs::write(&golden, vec![3; usize::try_from(BYTES).unwrap()]).unwrap();
    let path = folder.image_over(ImageFormat::Qcow2, BYTES, Some("golden"));
    let options = ImageOptions { other_files: true, ..options(&path, 0) };
    let mut model = Vec::new();
    for fill in 1..=5 {
        let (disk, now) = disk_with(&options, fill);
        model = now;
        freeze_closed(&options, disk, &format!("c{fill}"));
        if fill > 1 {
            release(&path, &format!("c{}", fill - 1)).unwrap();
        }
        try_again(|| tidy(&options, &|| true)).unwrap();
    }
    assert!(contents(&options, &path) == model);
    let images = chain::images(&path, &File::open(&path).unwrap()).unwrap();
    assert_eq!(images.len(), 3, "{images:?}");
    assert!(fs::read(golden).unwrap().iter().all(|byte| *byte == 3));
}

/// Two clones and the original go on side by side, each over the same state.
#[test]
fn clones_go_on_beside_the_original_and_keep_its_state() {
    let mut life = Life::new(9);
    life.change();
    life.checkpoint();
    let (state, _) = life.kept[0].clone();
    let clones = ["a", "b"].map(|name| {
        let path = image_of_clone(&life.path, name).unwrap();
        assert_eq!(cloned_from(&path).unwrap(), life.path);
        let mut options = options(&path, 1);
        options.record = Some(Writer { vm: [name.as_bytes()[0]; 16], generation: 1 });
        drop(try_again(|| hold(&options, Some(&state), LIMIT)).unwrap());
        assert!(revert_to(&options, &state, 1).abandoned.is_none());
        let taken = hold(&options, Some(&state), LIMIT);
        assert!(matches!(taken, Err(SnapshotError::Taken(_))), "{taken:?}");
        options
    });
    for round in 0..4 {
        life.change();
        life.checkpoint();
        life.tidy();
        life.check();
        for (clone, fill) in clones.iter().zip([40, 80]) {
            let (disk, now) = disk_with(clone, fill + round);
            drop(disk);
            assert!(contents(clone, &clone.path) == now);
        }
    }
    assert!(state.file_beside(&life.path).exists(), "a state that clones lie over");
    let (disk, now) = disk_with(&clones[0], 90);
    let own = freeze_closed(&clones[0], disk, "c9").state;
    assert_eq!(own.file.as_deref(), Some("Qcow2.img.clone-a.c9"));
    assert!(contents(&clones[0], &clones[0].path) == now);
    // Nobody makes one of what is released.
    let late = ImageOptions { record: None, ..qcow2(&image_of_clone(&life.path, "c").unwrap()) };
    let refused = try_again(|| revert(&late, &state, 1, LIMIT).map(drop));
    assert!(matches!(refused, Err(SnapshotError::Released(_))), "{refused:?}");
    fs::remove_file(&clones[1].path).unwrap();
    assert_eq!(life.tidy().merged, 0, "one is there still");
    for file in [own.file_beside(&clones[0].path), clones[0].path.clone()] {
        fs::remove_file(file).unwrap();
    }
    assert!(life.tidy().merged > 0);
    life.check();
    assert!(!state.file_beside(&life.path).exists());
}

/// Three checkpoints, of which the first is not needed any more.
fn with_one_to_merge(seed: u64) -> Life {
    let mut life = Life::new(seed);
    for _ in 0..3 {
        write(life.disk.as_ref().unwrap(), &mut life.model, (9, 9, 9));
        life.checkpoint();
    }
    life
}

/// A head of version 3 with 64 KiB clusters, and a name below at this place.
fn head(at: u64, name_bytes: u32) -> [u8; 104] {
    let mut head = [0; 104];
    head[..4].copy_from_slice(b"QFI\xfb");
    head[4..8].copy_from_slice(&3_u32.to_be_bytes());
    head[8..16].copy_from_slice(&at.to_be_bytes());
    head[16..20].copy_from_slice(&name_bytes.to_be_bytes());
    head[20..24].copy_from_slice(&16_u32.to_be_bytes());
    head
}

#[test]
fn guest_with_a_raw_disk_in_the_folder_stops_no_merge() {
    for (at, name) in [(u64::MAX, &b"12345"[..]), (u64::MAX / 2, b""), (104, b"\xff\xfe/\xff\xff")]
    {
        let life = with_one_to_merge(10);
        let bytes = [&head(at, 5)[..], name].concat();
        fs::write(life.path.with_file_name("raw.img"), bytes).unwrap();
        assert_eq!(life.tidy().merged, 1, "{at:#x}");
        life.check();
    }
}

#[test]
fn what_a_guest_has_on_its_raw_disk_merges_nothing() {
    let folder = Folder::in_memory();
    let path = folder.image(ImageFormat::Raw, BYTES);
    let options = ImageOptions { format: ImageFormat::Raw, ..options(&path, 0) };
    drop(GenerationRecord::claim(&path, options.record.unwrap()).unwrap());
    let state = |name: &str| path.with_file_name(format!("Raw.img.{name}"));
    // Each of its clones is a whole qcow2 image, and one names the other.
    let about = fs::metadata(&path).unwrap();
    let make = |name: &str, below: &str| {
        let made = (BYTES, overlay::CLUSTER_BYTES);
        overlay::make(&state(name), &state(below), made, (&about, 0o444)).unwrap();
        fs::set_permissions(state(name), Permissions::from_mode(0o444)).unwrap();
        fs::read(state(name)).unwrap()
    };
    make("c1", "c0");
    let second = make("c2", "c1");
    assert!(release(&path, "c1").unwrap());
    let tidied = try_again(|| tidy(&options, &|| true)).unwrap();
    assert_eq!(tidied, Tidied { removed: 1, ..Tidied::default() });
    assert!(!state("c1").exists());
    assert!(fs::read(state("c2")).unwrap() == second, "a checkpoint needs it");
    // What somebody has laid over one stays.
    let about = fs::metadata(&path).unwrap();
    let made = (BYTES, overlay::CLUSTER_BYTES);
    let mine = path.with_file_name("mine");
    overlay::make(&mine, &state("c2"), made, (&about, 0o644)).unwrap();
    assert!(release(&path, "c2").unwrap());
    let tidied = try_again(|| tidy(&options, &|| true)).unwrap();
    assert_eq!(tidied, Tidied { left: 1, ..Tidied::default() });
}

#[test]
fn files_of_others_whose_names_end_in_next_stay() {
    let mut life = Life::new(11);
    let beside = |more: &str| {
        let mut name = life.path.clone().into_os_string();
        name.push(more);
        PathBuf::from(name)
    };
    let image = fs::read(&life.path).unwrap();
    let others: Vec<_> =
        [".next", ".c2.next", ".web.next", ".clone-a.c4.next", ".c5.released", ".tessera-next-1"]
            .map(beside)
            .into();
    let over_state = beside(".clone-a.tessera-next-0123456789abcdef");
    let left = beside(".tessera-next-0123456789abcdef");
    others.iter().for_each(|path| fs::write(path, &image).unwrap());
    fs::write(&over_state, &image).unwrap();
    for _ in 0..4 {
        fs::write(&left, &image).unwrap();
        life.change();
        life.checkpoint();
        assert!(!left.exists(), "nobody is making it");
        fs::write(&left, &image).unwrap();
        life.tidy();
        life.check();
    }
    assert!(!left.exists(), "nobody is making it");
    let (state, model) = life.kept.back().unwrap().clone();
    drop(life.disk.take());
    life.generation += 1;
    revert_to(&life.options(), &state, life.generation);
    life.model = model;
    life.open();
    life.check();
    for path in others.iter().chain([&over_state]) {
        assert!(fs::read(path).unwrap() == image, "{}", path.display());
    }
}

/// What it lies over is a state of the first image, of which nobody may change names then.
#[test]
fn clone_of_a_clone_is_made_while_nobody_merges_what_it_will_lie_over() {
    let mut life = Life::new(12);
    life.change();
    life.checkpoint();
    let (state, _) = life.kept[0].clone();
    let clone = image_of_clone(&life.path, "a").unwrap();
    let clone = image_of_clone(&clone, "b").unwrap();
    let options = ImageOptions { record: None, ..qcow2(&clone) };
    let refused = std::cell::Cell::new(false);
    let before = |step| {
        if step == Step::Make {
            let original = GenerationRecord::watch(&life.path, None).unwrap().unwrap();
            refused.set(original.exclusively().is_err());
        }
    };
    try_again(|| revert::revert_before(&options, &state, (1, LIMIT), &before)).unwrap();
    assert!(refused.get());
}

/// Who deletes a checkpoint, at the moment at which the image is closed for a cut.
#[test]
fn image_that_is_being_tidied_up_can_be_opened_by_its_vm() {
    for (at, merged) in [(TidyStep::Copy, 0), (TidyStep::Rename, 0)] {
        let mut life = with_one_to_merge(13);
        drop(life.disk.take());
        let unused = qcow2(&life.path);
        let opened = std::cell::RefCell::new(None);
        let before = |step| {
            if step == at && opened.borrow().is_none() {
                *opened.borrow_mut() = Some(ImageDisk::open(&life.options()).unwrap());
            }
        };
        let tidied = tidy_before(&unused, Who::Other, (&|| true, &before));
        match tidied {
            Ok(tidied) => assert_eq!(tidied.merged, merged, "{at:?}"),
            Err(error) => assert!(matches!(error, SnapshotError::Untidy(_)), "{error:?}"),
        }
        life.disk = opened.into_inner();
        life.check();
        assert_eq!(life.images(), 4, "nothing was renamed below it");
        life.change();
        life.check();
        assert_eq!(life.tidy().merged, 1);
        life.check();
    }
}

#[test]
fn vm_that_has_a_cut_meanwhile_has_its_state_and_the_merge_goes_on_later() {
    let mut life = with_one_to_merge(14);
    drop(life.disk.take());
    let (unused, options) = (qcow2(&life.path), life.options());
    let frozen = std::cell::RefCell::new(None);
    let before = |step| {
        if step == TidyStep::Copy && frozen.borrow().is_none() {
            let (disk, model) = disk_with(&options, 77);
            *frozen.borrow_mut() = Some((freeze_closed(&options, disk, "c9").state, model));
        }
    };
    // Another test's fork may keep it.
    drop(tidy_before(&unused, Who::Other, (&|| true, &before)));
    let (state, model) = frozen.into_inner().unwrap();
    life.kept.push_back((state, model.clone()));
    life.model = model;
    life.open();
    life.check();
    life.tidy();
    life.check();
    assert_eq!(life.images(), 4);
}

/// On another host, or of another VM, is a file of the same name.
#[test]
fn state_of_another_vm_or_of_another_disk_is_not_given_up() {
    let life = with_one_to_merge(15);
    let (state, _) = life.kept[0].clone();
    let ask = |state: &DiskState, by| try_again(|| give_up(state, by, LIMIT));
    let refused = ask(&state, Claim::Vm([8; 16]));
    assert!(matches!(refused, Err(SnapshotError::Foreign { theirs, .. }) if theirs.vm == VM));
    let copied = DiskState { inode: 1, sample: [9; 32], ..state.clone() };
    let refused = ask(&copied, Claim::Vm(VM));
    assert!(matches!(refused, Err(SnapshotError::Changed { .. })), "{refused:?}");
    let gone = DiskState { file: Some("Qcow2.img.c77".into()), ..state.clone() };
    assert!(!ask(&gone, Claim::Vm(VM)).unwrap());
    assert!(!marks::is_released(&state.file_beside(&life.path)));
    let copied = DiskState { inode: 1, ..state.clone() };
    assert!(ask(&copied, Claim::Person).unwrap(), "a merge has made it another file");
    assert!(ask(&state, Claim::Vm(VM)).unwrap(), "again");
    assert!(marks::is_released(&state.file_beside(&life.path)));
    let record = life.path.with_file_name("Qcow2.img.tessera");
    fs::remove_file(record).unwrap();
    let refused = ask(&life.kept[1].0, Claim::Vm(VM));
    assert!(matches!(refused, Err(SnapshotError::Unknown(_))), "{refused:?}");
}

/// Its user has made it larger while no VM ran, as `qemu-img resize` does.
#[test]
fn disk_that_has_grown_keeps_no_states_from_being_merged() {
    let mut life = Life::new(14);
    life.change();
    life.checkpoint();
    drop(life.disk.take());
    let below = life.kept[0].0.file_beside(&life.path);
    let about = fs::metadata(&life.path).unwrap();
    let cluster = overlay::cluster_of(&File::open(&below).unwrap()).unwrap();
    fs::remove_file(&life.path).unwrap();
    drop(overlay::make(&life.path, &below, (2 * BYTES, cluster), (&about, 0o644)).unwrap());
    life.model.resize(usize::try_from(2 * BYTES).unwrap(), 0);
    life.open();
    for _ in 0..8 {
        life.change();
        life.checkpoint();
        let tidied = try_again(|| tidy(&life.options(), &|| true));
        life.check();
        assert!(life.images() <= 5, "{} images: {tidied:?}", life.images());
    }
}
