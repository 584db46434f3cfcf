//! A VM of two slices in this process, or of one that others join, and what can be seen of it from outside.

use crate::guest::{
    self, AGREE, DIFFER, EXCEPTION, LOOPS, NOT_READ, ON_DISK, PAGES, READS, SENT, SLICE_BYTES,
};
use dsm::Mechanisms;
use migrate::supervise::Lives;
use needs::Need;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tessera_vmm::cmdline::GuestPreset;
use tessera_vmm::control::{
    AddRequest, Answer, CheckpointAnswer, CheckpointRequest, Client, ClientError, Desk,
    MoveVcpuRequest, PauseRequest, PlacementAnswer, PlacementRequest, Progress, Reason,
    ReportAnswer, ReportRequest, Request, ResumeRequest,
};
use tessera_vmm::slice::{
    Boot, BootstrapOptions, Borrow, ClockTest, CompanionOptions, DeviceKind, DeviceSpec,
    DiskFormat, DiskSpec, Ending, Interrupts, Lend, LocalOptions, Memory, Offer, OnFull,
    PageTables, RestoreOptions, RestoredClock, Rings, SliceSpec, Standby as StandbySpec, Start,
    StopHandle, VmSpec, bootstrap, companion, one_line, saved_spec,
};
use transport::{CarrierKind, Credential, RdmaMemory, Secret};
use vm_service::Server;

/// Patience with a loaded machine; nothing depends on its value.
const LIMIT: Duration = Duration::from_secs(60);
/// Part of the name of all memory files of slices.
const MEMORY_FILE: &str = "tessera-guest-ram";

pub(crate) const PAUSE: Request = Request::Pause(PauseRequest {});
pub(crate) const RESUME: Request = Request::Resume(ResumeRequest {});

pub(crate) fn move_to(vcpu: usize, slice: u16) -> Request {
    let vcpu = u32::try_from(vcpu).expect("it is small");
    Request::MoveVcpu(MoveVcpuRequest { vcpu, slice })
}

/// A folder that goes away with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-pause-{}-{number}", id()));
        fs::create_dir_all(checkpoints(&path)).expect("make a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a slice has ended, in a line if it has not run.
type End = Result<Ending, String>;

#[derive(Clone, Debug, Default)]
struct Seen {
    /// What the guest has written to its serial line.
    text: Vec<u8>,
    /// By slice.
    ends: BTreeMap<u16, Option<End>>,
}

impl Seen {
    /// How often the guest has written each of its letters.
    fn counts(&self, letters: &[u8]) -> Vec<usize> {
        let count = |letter| self.text.iter().filter(|byte| *byte == letter).count();
        letters.iter().map(count).collect()
    }

    /// What the guest has found at its end.
    fn found(&self) -> Option<u8> {
        self.text.iter().copied().find(|byte| [AGREE, DIFFER].contains(byte))
    }

    fn has_failed(&self) -> bool {
        let orderly = |end: &End| {
            use Ending::{Drained, PowerOff, Saved, Stopped, Told};
            matches!(end, Ok(PowerOff | Saved | Stopped { .. } | Told(_) | Drained))
        };
        [EXCEPTION, NOT_READ].iter().any(|letter| self.text.contains(letter))
            || !self.ends.values().flatten().all(orderly)
    }

    /// How a slice has ended, if it has.
    fn end(&self, slice: u16) -> Option<&End> {
        self.ends.get(&slice)?.as_ref()
    }

    fn is_over(&self) -> bool {
        self.ends.values().all(Option::is_some)
    }

    /// For messages.
    fn describe(&self) -> String {
        let tail = String::from_utf8_lossy(&self.text[self.text.len().saturating_sub(80)..]);
        format!("the console ends in {tail:?}, the slices with {:?}", self.ends)
    }
}

#[derive(Clone, Default)]
struct Line(Arc<(Mutex<Seen>, Condvar)>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.change(|seen| seen.text.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line {
    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.0.lock().expect("no test panics here"));
        self.0.1.notify_all();
    }

    fn seen(&self) -> Seen {
        self.0.0.lock().expect("as above").clone()
    }

    /// Waits until it is so, something has failed, or the time is over; what is seen then, and whether it is so.
    fn wait_until(&self, so: impl Fn(&Seen) -> bool) -> (Seen, bool) {
        let seen = self.0.0.lock().expect("as above");
        let more = |seen: &mut Seen| !so(seen) && !seen.has_failed();
        let (seen, _) = self.0.1.wait_timeout_while(seen, LIMIT, more).expect("as above");
        (seen.clone(), so(&seen) && !seen.has_failed())
    }
}

/// A VM that is written down, and does not run.
#[derive(Clone)]
pub(crate) struct Saved {
    pub(crate) folder: Arc<Folder>,
    pub(crate) name: String,
    /// It goes on with these, if not with those that it had.
    pub(crate) interrupts: Option<Interrupts>,
    letters: Vec<u8>,
    lend: Lend,
    /// The disk that it goes on with, if that is no new copy.
    disk: Option<PathBuf>,
    /// Also if that is not as the VM has left it.
    pub(crate) any_disk: bool,
    /// The guest runs before its memory is read, with such a pause between two pieces that nobody needs.
    lazy: Option<Duration>,
    /// Slices of before may be there until then.
    fenced_at: Option<u64>,
    /// Which life goes on, and the last one that who begins it knows of.
    lives: Option<Lives>,
    /// When it uses the vCPU of the other slice.
    borrow: Borrow,
}

impl Saved {
    /// To go on as this life.
    pub(crate) fn with_lives(self, lives: Lives) -> Self {
        Self { lives: Some(lives), ..self }
    }

    /// To go on with the other slice's vCPU there at these times.
    pub(crate) fn borrowing(self, borrow: Borrow) -> Self {
        Self { borrow, ..self }
    }

    /// To go on when slices of before have stopped, at this moment of CLOCK_BOOTTIME in milliseconds.
    pub(crate) fn fenced_at(self, at: u64) -> Self {
        Self { fenced_at: Some(at), ..self }
    }

    /// To go on before memory is read, with such a pause between two pieces that nobody needs.
    pub(crate) fn lazily(self, pause: Duration) -> Self {
        Self { lazy: Some(pause), ..self }
    }

    /// The folder of the checkpoint.
    pub(crate) fn path(&self) -> PathBuf {
        checkpoints(&self.folder.0).join(&self.name)
    }

    /// To go on with this disk, which other VMs may have used.
    pub(crate) fn with_disk(self, disk: PathBuf) -> Self {
        Self { disk: Some(disk), ..self }
    }

    /// Copies the disk with all of its files to a folder of its own.
    pub(crate) fn copy_disk(&self) -> PathBuf {
        copy_disk(&self.folder.0, &self.folder.0.join("disk"))
    }
}

fn new_folder(parent: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = parent.join(format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&folder).expect("make a folder");
    folder
}

/// A disk with its states, in a file of its own: what is left of a VM that is over keeps it locked as long as this process runs.
fn copy_disk(to: &Path, disk: &Path) -> PathBuf {
    let folder = new_folder(to, "again");
    let name = disk.file_name().expect("it has a name");
    let from = disk.parent().expect("it is in a folder");
    for path in fs::read_dir(from).expect("list it").map(|entry| entry.expect("list it").path()) {
        let file = path.file_name().expect("it has a name");
        let more = file.as_bytes().strip_prefix(name.as_bytes());
        if more.is_some_and(|more| more.is_empty() || more[0] == b'.') {
            fs::copy(&path, folder.join(file)).expect("copy the disk");
        }
    }
    folder.join(name)
}

/// All files of the folder of a disk, with what is in them.
pub(crate) fn files_of(disk: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = fs::read_dir(disk.parent().expect("it is in a folder")).expect("list it");
    let paths = folder.map(|entry| entry.expect("list it").path()).filter(|path| path.is_file());
    paths.map(|path| (path.clone(), fs::read(path).expect("read it"))).collect()
}

/// A VM that runs.
pub(crate) struct Vm {
    line: Line,
    /// By slice.
    stops: BTreeMap<u16, StopHandle>,
    pub(crate) secret: Secret,
    /// What each companion lends.
    lend: Lend,
    pub(crate) folder: Arc<Folder>,
    /// Where its control sockets are: of no other VM.
    sockets: PathBuf,
    /// What the guest writes.
    letters: Vec<u8>,
    /// Between two pieces of memory that are read while the guest runs.
    load_pause: Duration,
}

/// The name of the disk on the other slice's host.
pub(crate) const STANDBY: &str = "disk-there";

/// What the other slice has of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standby {
    /// Nothing.
    None,
    /// The same.
    Same,
    /// A file that was the same once.
    Copy,
    /// Nothing, and its image is one of which states can be kept.
    Qcow2,
}

/// What memory is full of that the guest never touches, at the end of what the first slice has.
pub(crate) const UNTOUCHED: u8 = 0x77;

/// The secret of all VMs here.
pub(crate) fn key() -> Secret {
    Secret::from_bytes(b"a secret of tests, and of no use").expect("long enough")
}

/// Whether this machine can run it.
pub(crate) fn is_possible() -> bool {
    needs::kvm() && needs::has(Need::Uffd, dsm::check_host())
}

impl Vm {
    /// Starts it, and waits until all of it moves.
    pub(crate) fn start(interrupts: Interrupts, carrier: CarrierKind, disk: bool) -> Self {
        let disk = if disk { guest::Disk::Reads } else { guest::Disk::None };
        Self::start_with(interrupts, carrier, disk, Standby::None)
    }

    /// The same with this use of a disk of slice 1, which slice 0 may have later.
    pub(crate) fn start_with(
        interrupts: Interrupts,
        carrier: CarrierKind,
        disk: guest::Disk,
        standby: Standby,
    ) -> Self {
        let slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: SLICE_BYTES }; 2];
        Self::launch((interrupts, carrier), slices, (disk, 1, standby), true)
    }

    /// Starts it on one slice.
    pub(crate) fn start_lone(interrupts: Interrupts, carrier: CarrierKind, disk: bool) -> Self {
        let slices = vec![SliceSpec { vcpus: 2, spare_vcpus: 0, memory: 2 * SLICE_BYTES }];
        let disk = if disk { guest::Disk::Reads } else { guest::Disk::None };
        Self::launch((interrupts, carrier), slices, (disk, 0, Standby::None), true)
    }

    /// The same, with its disk on another slice, which has nothing else.
    pub(crate) fn start_with_disk_apart(
        interrupts: Interrupts,
        carrier: CarrierKind,
        (disk, standby): (guest::Disk, Standby),
    ) -> Self {
        let apart = SliceSpec { vcpus: 0, spare_vcpus: 0, memory: 0 };
        let slices = vec![SliceSpec { vcpus: 2, spare_vcpus: 0, memory: 2 * SLICE_BYTES }, apart];
        Self::launch((interrupts, carrier), slices, (disk, 1, standby), true)
    }

    /// Starts it on one slice, beside one that has nothing, whose host is called at this address.
    pub(crate) fn start_beside(bystander: SocketAddr, carrier: CarrierKind) -> Self {
        let apart = SliceSpec { vcpus: 0, spare_vcpus: 0, memory: 0 };
        let slices = vec![SliceSpec { vcpus: 2, spare_vcpus: 0, memory: 2 * SLICE_BYTES }, apart];
        let how = (Interrupts::Userspace, carrier);
        let disk = (guest::Disk::None, 1, Standby::None);
        Self::launch_with(how, slices, disk, (true, Some(vec![bystander]), &|options| options))
    }

    /// Starts it, and says that somebody has its bootstrap again when that is lost.
    pub(crate) fn start_supervised() -> Self {
        let slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: SLICE_BYTES }; 2];
        let how = (Interrupts::Userspace, CarrierKind::Shm);
        let is_so = |options: BootstrapOptions| {
            let spec = VmSpec { supervised: true, ..options.spec };
            BootstrapOptions { spec, ..options }
        };
        Self::launch_with(how, slices, (guest::Disk::None, 1, Standby::None), (true, None, &is_so))
    }

    /// Starts it with both vCPUs on the first slice, until they are borrowed.
    pub(crate) fn start_at_home(
        interrupts: Interrupts,
        carrier: CarrierKind,
        (borrow, spare_vcpus): (Borrow, u32),
    ) -> Self {
        let mut slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: SLICE_BYTES }; 2];
        slices[1].spare_vcpus = spare_vcpus;
        let disk = (guest::Disk::Reads, 0, Standby::None);
        let is_so = |options| BootstrapOptions { borrow, ..options };
        Self::launch_with((interrupts, carrier), slices, disk, (true, None, &is_so))
    }

    /// The same, and nobody can join it.
    pub(crate) fn start_without_secret() -> Self {
        let slices = vec![SliceSpec { vcpus: 2, spare_vcpus: 0, memory: 2 * SLICE_BYTES }];
        let how = (Interrupts::Userspace, CarrierKind::Shm);
        Self::launch(how, slices, (guest::Disk::None, 0, Standby::None), false)
    }

    fn launch(
        how: (Interrupts, CarrierKind),
        slices: Vec<SliceSpec>,
        disk: (guest::Disk, u16, Standby),
        secret: bool,
    ) -> Self {
        Self::launch_with(how, slices, disk, (secret, None, &|options| options))
    }

    /// With these companions, or with those that it takes, and what else is said of the VM.
    fn launch_with(
        (interrupts, carrier): (Interrupts, CarrierKind),
        slices: Vec<SliceSpec>,
        (disk, disk_at, standby): (guest::Disk, u16, Standby),
        (secret, companions, more): (bool, Option<Vec<SocketAddr>>, More<'_>),
    ) -> Self {
        let (folder, line) = (Arc::new(Folder::new()), Line::default());
        let kernel = folder.0.join("kernel");
        fs::write(&kernel, guest::image(disk)).expect("write the kernel");
        let initrd = folder.0.join("initrd");
        fs::write(&initrd, vec![UNTOUCHED; 4 << 20]).expect("write what the guest never touches");
        let image = folder.0.join("disk");
        // What a guest that writes finds in its sectors at first does not matter: it writes before it reads.
        let (format, bytes) = match standby {
            Standby::Qcow2 => (DiskFormat::Qcow2, guest::qcow2()),
            _ => (DiskFormat::Raw, vec![ON_DISK; 4096]),
        };
        fs::write(&image, bytes).expect("write the disk");
        let there = folder.0.join(STANDBY);
        match standby {
            Standby::None | Standby::Qcow2 => {}
            // Two names of one file, as two hosts may have for one on storage that they share.
            Standby::Same => fs::hard_link(&image, &there).expect("give it another name"),
            Standby::Copy => drop(fs::copy(&image, &there).expect("copy the disk")),
        }
        let read_only = disk == guest::Disk::Reads;
        let kind = DiskSpec { path: image, format, read_only }.into();
        let name = there.into_os_string().into_string().ok();
        let elsewhere = matches!(standby, Standby::Same | Standby::Copy);
        let standby = elsewhere.then_some(StandbySpec { slice: 0, name });
        let standby = standby.into_iter().collect();
        let device = DeviceSpec { slice: disk_at, rings: Rings::Bypass, standby, kind };
        let device = (disk != guest::Disk::None).then_some(device);
        let used: &[[u8; 2]] =
            if device.is_some() { &[LOOPS, SENT, READS] } else { &[LOOPS, SENT] };
        let mode = if read_only { "ro" } else { "rw" };
        let lend = format!("disk:{mode}:{}", folder.0.join("disk").display());
        let mut vm = Self {
            lend: lend.parse().expect("it is so lent"),
            line: line.clone(),
            stops: BTreeMap::from([(0, StopHandle::new())]),
            secret: key(),
            sockets: folder.0.clone(),
            folder,
            letters: used.concat(),
            load_pause: Duration::ZERO,
        };
        let companions = companions.unwrap_or_else(|| {
            let numbers = (1..slices.len()).map(|slice| u16::try_from(slice).expect("it is small"));
            let offer = || Offer { vcpus: Some(2), bytes: None };
            numbers.map(|slice| vm.companion(slice, offer())).collect()
        });
        let options = more(BootstrapOptions {
            spec: spec(interrupts, slices, device),
            companions,
            secret: secret.then(|| vm.secret.clone()),
            start: Start::Boot(Boot {
                kernel,
                initrd: Some(initrd),
                cmdline: String::new(),
                guest_preset: GuestPreset::None,
                node_distance: 40,
            }),
            ..vm.options(carrier)
        });
        let api = serve(&options.local);
        let first = move || {
            let _api = api;
            Ok(bootstrap(options).map_err(|error| one_line(&error))?.0)
        };
        run(&line, 0, first);
        vm.moves_on();
        vm
    }

    /// The control socket of a slice.
    pub(crate) fn socket(&self, slice: u16) -> PathBuf {
        socket(&self.sockets, slice)
    }

    /// What all bootstraps here have; who calls sets the rest.
    fn options(&self, carrier: CarrierKind) -> BootstrapOptions {
        let nowhere = RestoreOptions {
            path: PathBuf::new(),
            clock: RestoredClock::Keep,
            unauthenticated: false,
            no_disk_guarantee: false,
            lazy: false,
            clone: None,
            fenced_at: None,
            lives: None,
        };
        BootstrapOptions {
            spec: spec(Interrupts::Auto, Vec::new(), None),
            companions: Vec::new(),
            secret: Some(self.secret.clone()),
            start: Start::Restore(nowhere),
            console: Box::new(self.line.clone()),
            limit: None,
            stop: self.stops[&0].clone(),
            stop_limit: LIMIT,
            lease: Duration::from_secs(20),
            carriers: vec![carrier],
            rdma_memory: RdmaMemory::Pool,
            borrow: Borrow::Always,
            local: local(
                (&self.folder.0, &self.sockets),
                (0, self.load_pause),
                Offer { vcpus: Some(2), bytes: None },
            ),
        }
    }

    /// Goes on from a checkpoint on slices of this shape.
    pub(crate) fn restore(saved: Saved, carrier: CarrierKind, slices: Vec<SliceSpec>) -> Self {
        let vm = Self::begin_restore(saved, carrier, slices, key());
        vm.moves_on();
        vm
    }

    /// Why a VM of this shape does not go on from a checkpoint.
    pub(crate) fn restore_refusal(saved: Saved, slices: Vec<SliceSpec>, secret: Secret) -> String {
        Self::begin_restore(saved, CarrierKind::Shm, slices, secret).why_not()
    }

    /// The same with all devices at the first slice, and whatever is at this address as the other one.
    pub(crate) fn restore_refusal_beside(
        saved: Saved,
        slices: Vec<SliceSpec>,
        other: SocketAddr,
    ) -> String {
        let others = Some(vec![other]);
        Self::begin_restore_with((saved, 0), CarrierKind::Shm, slices, (key(), others)).why_not()
    }

    /// What all slices say at the end of a VM that fails.
    pub(crate) fn failure(&self) -> String {
        let seen = self.line.0.0.lock().expect("as above");
        let runs = |seen: &mut Seen| !seen.is_over();
        let (seen, _) = self.line.0.1.wait_timeout_while(seen, LIMIT, runs).expect("as above");
        seen.describe()
    }

    fn why_not(&self) -> String {
        let vm = self;
        let (seen, _) = vm.line.wait_until(|seen| seen.end(0).is_some());
        match seen.end(0) {
            Some(Err(why)) => why.clone(),
            _ => panic!("{}", seen.describe()),
        }
    }

    fn begin_restore(
        saved: Saved,
        carrier: CarrierKind,
        slices: Vec<SliceSpec>,
        secret: Secret,
    ) -> Self {
        Self::begin_restore_with((saved, u16::MAX), carrier, slices, (secret, None))
    }

    /// With devices at no later slice than this one, and with these companions or such as it takes.
    fn begin_restore_with(
        (
            Saved {
                folder,
                name,
                interrupts,
                letters,
                lend,
                disk,
                any_disk,
                lazy,
                fenced_at,
                lives,
                borrow,
            },
            last,
        ): (Saved, u16),
        carrier: CarrierKind,
        slices: Vec<SliceSpec>,
        (secret, others): (Secret, Option<Vec<SocketAddr>>),
    ) -> Self {
        let (line, path) = (Line::default(), checkpoints(&folder.0).join(name));
        let stops = BTreeMap::from([(0, StopHandle::new())]);
        let sockets = new_folder(&folder.0, "vm");
        let (line_of, load_pause) = (line.clone(), lazy.unwrap_or_default());
        let mut vm =
            Self { lend, line: line_of, stops, secret, folder, sockets, letters, load_pause };
        // One that cannot be read is refused by the bootstrap too.
        let saved = saved_spec(&path, None);
        let saved = saved.unwrap_or_else(|_| spec(Interrupts::Auto, Vec::new(), None));
        let mut devices = saved.devices.clone();
        for device in &mut devices {
            device.slice = device.slice.min(u16::try_from(slices.len() - 1).expect("it is small"));
            device.slice = device.slice.min(last);
            vm.take_disk(&mut device.kind, disk.as_deref());
        }
        let numbers = (1..slices.len()).map(|slice| u16::try_from(slice).expect("it is small"));
        let offer = || Offer { vcpus: Some(2), bytes: None };
        let companion = |slice| vm.companion(slice, offer());
        let companions = others.unwrap_or_else(|| numbers.map(companion).collect());
        let clock = RestoredClock::Keep;
        let start = Start::Restore(RestoreOptions {
            path,
            clock,
            unauthenticated: false,
            no_disk_guarantee: any_disk,
            lazy: lazy.is_some(),
            clone: None,
            fenced_at,
            lives,
        });
        let interrupts = interrupts.unwrap_or(saved.interrupts);
        let spec = VmSpec { slices, devices, interrupts, ..saved };
        let options = BootstrapOptions { spec, companions, start, borrow, ..vm.options(carrier) };
        run(&line, 0, move || Ok(bootstrap(options).map_err(|error| one_line(&error))?.0));
        vm
    }

    /// A VM that goes on has this disk, or a copy of that which it had.
    fn take_disk(&mut self, device: &mut DeviceKind, chosen: Option<&Path>) {
        let DeviceKind::Disk(disk) = device else { return };
        let path = chosen.map_or_else(|| copy_disk(&self.folder.0, &disk.path), Path::to_owned);
        let mode = if disk.read_only { "ro" } else { "rw" };
        self.lend = format!("disk:{mode}:{}", path.display()).parse().expect("it is so lent");
        disk.path = path;
    }

    /// Writes a checkpoint, with which the VM ends.
    pub(crate) fn save(self, name: &str) -> Saved {
        let request = CheckpointRequest { end: true, ..self.checkpoint(name) };
        self.written(request);
        let (seen, _) = self.line.wait_until(|seen| seen.is_over());
        let saved = |(slice, end): (&u16, &Option<End>)| match end {
            Some(Ok(Ending::Saved)) => *slice == 0,
            Some(Ok(Ending::Told(_))) => *slice != 0,
            _ => false,
        };
        assert!(seen.ends.iter().all(saved), "{}", seen.describe());
        self.saved(name)
    }

    /// Writes a checkpoint.
    pub(crate) fn written(&self, request: CheckpointRequest) -> CheckpointAnswer {
        let request = Request::Checkpoint(request);
        let until = Instant::now() + LIMIT;
        let answer = loop {
            match self.ask(0, &request) {
                // One that is restored answers before its guest has gone on.
                Err(ClientError::Refused(why))
                    if why.reason == Reason::Paused && Instant::now() < until =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                other => break other,
            }
        };
        match answer {
            Ok(Answer::Checkpoint(answer)) => {
                println!("{answer:?}");
                answer
            }
            other => panic!("{other:?}; {}", self.line.seen().describe()),
        }
    }

    /// What was written under this name.
    pub(crate) fn saved(&self, name: &str) -> Saved {
        let (folder, letters) = (Arc::clone(&self.folder), self.letters.clone());
        let (name, lend, disk) = (name.to_owned(), self.lend.clone(), None);
        let (interrupts, any_disk, lazy, fenced_at, lives) = (None, false, None, None, None);
        let borrow = Borrow::Always;
        Saved {
            folder,
            name,
            interrupts,
            letters,
            lend,
            disk,
            any_disk,
            lazy,
            fenced_at,
            lives,
            borrow,
        }
    }

    /// What is asked for a checkpoint of this name.
    pub(crate) fn checkpoint(&self, name: &str) -> CheckpointRequest {
        let path = checkpoints(&self.folder.0).join(name);
        let path = path.to_str().expect("it is plain").to_owned();
        CheckpointRequest { path, ..CheckpointRequest::default() }
    }

    /// A companion waits at this address; it is to be this slice.
    pub(crate) fn companion(&mut self, slice: u16, offer: Offer) -> SocketAddr {
        let (address, stop) = (free_address(), StopHandle::new());
        self.stops.insert(slice, stop.clone());
        let options = CompanionOptions {
            listen: address,
            credential: Credential::Secret(self.secret.clone()),
            local: local((&self.folder.0, &self.sockets), (slice, self.load_pause), offer),
            lend: vec![self.lend.clone()],
            stop,
            console: Box::new(self.line.clone()),
        };
        // Threads of a VM that hangs stay behind: the test fails without waiting for them.
        let api = serve(&options.local);
        let work = move || {
            let _api = api;
            Ok(companion(options).map_err(|error| one_line(&error))?.0)
        };
        run(&self.line, slice, work);
        wait_for_listener(address);
        address
    }

    /// A companion that is not of this VM waits for another one, longer than this test.
    pub(crate) fn let_wait(&self, slice: u16) {
        self.line.change(|seen| assert_eq!(seen.ends.remove(&slice), Some(None), "it waits"));
    }

    /// One slice more joins.
    pub(crate) fn add(&mut self, slice: u16, empty: bool) {
        let address = self.companion(slice, Offer { vcpus: Some(2), bytes: None });
        self.relocate(&Request::Add(AddRequest { address, empty, number: None }));
    }

    /// Waits until each vCPU has gone around and had interrupts counted once more.
    pub(crate) fn moves_on(&self) {
        let before = self.line.seen().counts(&self.letters);
        let (seen, moved) = self.line.wait_until(|seen| {
            seen.counts(&self.letters).iter().zip(&before).all(|(now, before)| now > before)
        });
        let after = seen.counts(&self.letters);
        assert!(moved, "the guest came from {before:?} to {after:?}: {}", seen.describe());
    }

    /// Asks a slice.
    pub(crate) fn ask(&self, slice: u16, request: &Request) -> Result<Answer, ClientError> {
        Client::connect(&socket(&self.sockets, slice))?.ask(request)
    }

    /// The same of the bootstrap slice, where it must be done.
    pub(crate) fn must(&self, request: &Request) {
        self.must_at(0, request);
    }

    /// The same of the slice that coordinates.
    pub(crate) fn must_at(&self, slice: u16, request: &Request) {
        match self.ask(slice, request) {
            Ok(Answer::Done(_)) => {}
            other => {
                // A VM that is over says why when its slices have ended.
                let (seen, _) = self.line.wait_until(|seen| seen.is_over());
                panic!("{request:?}: {other:?}; {}", seen.describe())
            }
        }
    }

    /// The same where it must be refused; why.
    pub(crate) fn refusal(&self, slice: u16, request: &Request) -> String {
        match self.ask(slice, request) {
            Err(ClientError::Refused(why)) => why.message,
            other => panic!("{request:?}: {other:?}; {}", self.line.seen().describe()),
        }
    }

    /// Where everything is; both slices see the same.
    pub(crate) fn placement(&self) -> PlacementAnswer {
        let [first, other] = [0, 1].map(|slice| self.placement_of(slice));
        assert_eq!(first, other);
        first
    }

    /// Where everything is; all of these slices see the same.
    pub(crate) fn placement_by(&self, slices: &[u16]) -> PlacementAnswer {
        let mut all: Vec<_> = slices.iter().map(|slice| self.placement_of(*slice)).collect();
        all.dedup();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Where everything is, as a slice sees it.
    pub(crate) fn placement_of(&self, slice: u16) -> PlacementAnswer {
        match self.ask(slice, &Request::Placement(PlacementRequest {})) {
            Ok(Answer::Placement(answer)) => answer,
            other => panic!("{other:?}; {}", self.line.seen().describe()),
        }
    }

    /// Faults that a slice has had.
    pub(crate) fn faults(&self, slice: u16) -> u64 {
        match self.ask(slice, &Request::Report(ReportRequest {})) {
            Ok(Answer::Report(report)) => {
                let far = report.memory.faults;
                report.memory.faults_local + far.read + far.write + far.upgrade
            }
            other => panic!("{other:?}; {}", self.line.seen().describe()),
        }
    }

    /// Where the vCPUs are.
    pub(crate) fn vcpus_by_slice(&self) -> [Vec<u32>; 2] {
        let placement = self.placement();
        [0, 1].map(|slice| placement.slices[slice].vcpus.clone())
    }

    /// Asks the bootstrap slice for what is done part by part; what it says of each.
    pub(crate) fn relocate(&self, request: &Request) -> Vec<Progress> {
        self.relocate_at(0, request)
    }

    /// The same of the slice that coordinates.
    pub(crate) fn relocate_at(&self, slice: u16, request: &Request) -> Vec<Progress> {
        let mut heard = Vec::new();
        let client = Client::connect(&socket(&self.sockets, slice));
        let answer = client.and_then(|mut it| it.ask_with(request, |far| heard.push(far)));
        let seen = || self.line.seen().describe();
        assert!(matches!(answer, Ok(Answer::Done(_))), "{request:?}: {answer:?}; {}", seen());
        heard
    }

    /// Takes the saved forms of both slices; there are none afterwards.
    pub(crate) fn take_forms(&self) -> Vec<Vec<u8>> {
        self.take_forms_of(&[0, 1])
    }

    /// The same of these slices.
    pub(crate) fn take_forms_of(&self, slices: &[u16]) -> Vec<Vec<u8>> {
        let take = |slice: &u16| {
            let slice = *slice;
            let path = forms(&self.folder.0, slice).join(format!("slice-{slice}"));
            let bytes = fs::read(&path).expect("read a form");
            fs::remove_file(&path).expect("remove a form");
            bytes
        };
        slices.iter().map(take).collect()
    }

    /// What moves while the guest does: the text, the counters of both memory engines, and the pages that the guest
    /// writes, in the memory of both slices. Chunks are put on huge pages at any time.
    pub(crate) fn look(&self) -> Look {
        let report = |slice| match self.ask(slice, &Request::Report(ReportRequest {})) {
            Ok(Answer::Report(mut report)) => {
                let chunks = &mut report.memory.chunks;
                (chunks.collapsed, chunks.collapse_ns) = (0, 0);
                *report
            }
            other => panic!("{other:?}; {}", self.line.seen().describe()),
        };
        Look { text: self.line.seen().text.len(), reports: [0, 1].map(report), pages: pages() }
    }

    /// Presses the power button, and waits for the end; what the guest has found.
    pub(crate) fn power_off(self) -> u8 {
        self.power_off_at(0, 0)
    }

    /// The same by a request to one slice, while another coordinates.
    pub(crate) fn power_off_at(self, asked: u16, coordinator: u16) -> u8 {
        assert!(self.stops[&asked].ask(), "it runs");
        let (seen, found) = self.line.wait_until(|seen| seen.found().is_some());
        assert!(found, "interrupts are lost: {}", seen.describe());
        let (seen, _) = self.line.wait_until(|seen| seen.is_over());
        let as_expected = |(slice, end): (&u16, &Option<End>)| match end {
            Some(Ok(Ending::PowerOff)) => *slice == coordinator,
            Some(Ok(Ending::Told(_))) => *slice != coordinator,
            // It has left before.
            Some(Ok(Ending::Drained)) => true,
            _ => false,
        };
        assert!(seen.ends.iter().all(as_expected), "{}", seen.describe());
        seen.found().expect("it was there")
    }

    /// Has slice 0 do something, and asks a slice for the end meanwhile; what the guest has found. Whoever coordinates
    /// then says that it has powered off.
    pub(crate) fn power_off_amid(self, request: &Request, after: Duration, asked: u16) -> u8 {
        let stop = self.stops[&asked].clone();
        let asks = thread::spawn(move || {
            thread::sleep(after);
            assert!(stop.ask(), "it runs");
        });
        // It is done, or refused because the VM is to end; the client of a VM that is over has no answer.
        drop(self.ask(0, request));
        asks.join().expect("it asks");
        let (seen, _) = self.line.wait_until(|seen| seen.is_over());
        let off = |slice| matches!(seen.end(slice), Some(Ok(Ending::PowerOff)));
        let told = |slice| matches!(seen.end(slice), Some(Ok(Ending::Told(_))));
        let orderly = off(0) && told(1) || told(0) && off(1);
        assert!(orderly, "{after:?}: {}", seen.describe());
        seen.found().expect("it says so before it ends")
    }

    /// Waits until the slice that was drained has ended.
    pub(crate) fn wait_until_drained(&self, slice: u16) {
        let (seen, drained) = self.line.wait_until(|seen| seen.end(slice).is_some());
        assert!(drained && seen.end(slice) == Some(&Ok(Ending::Drained)), "{}", seen.describe());
    }

    /// Waits for the end of a VM of one slice that was asked to stop; what the guest has found.
    pub(crate) fn powers_off(self) -> u8 {
        let (seen, ended) = self.line.wait_until(|seen| seen.end(0).is_some());
        assert!(ended && seen.end(0) == Some(&Ok(Ending::PowerOff)), "{}", seen.describe());
        seen.found().expect("it says so before it ends")
    }

    /// Presses the power button of a VM whose other slice was drained; what the guest has found.
    pub(crate) fn power_off_alone(self, slice: u16) -> u8 {
        assert!(self.stops[&slice].ask(), "it runs");
        let (seen, ended) = self.line.wait_until(|seen| seen.end(slice).is_some());
        assert!(ended && seen.end(slice) == Some(&Ok(Ending::PowerOff)), "{}", seen.describe());
        seen.found().expect("it says so before it ends")
    }

    /// Asks twice for the end, so that the guest is not waited for.
    pub(crate) fn stop_at_once(self) {
        assert!(self.stops[&0].ask() && self.stops[&0].ask(), "it runs");
        let (seen, _) = self.line.wait_until(|seen| seen.is_over());
        let [first, other] = [0, 1].map(|slice| seen.end(slice));
        assert!(matches!(first, Some(Ok(Ending::Stopped { .. }))), "{}", seen.describe());
        assert!(matches!(other, Some(Ok(Ending::Told(_)))), "{}", seen.describe());
    }
}

impl Drop for Vm {
    /// One that fails its test ends: it would go on beside the next one, which looks at all memory in this process.
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for stop in self.stops.values() {
            // The second request does not wait for the guest; a slice that has ended hears neither.
            let _ = stop.ask() && stop.ask();
        }
        let Ok(seen) = self.line.0.0.lock() else { return };
        let runs = |seen: &mut Seen| !seen.is_over();
        let _ = self.line.0.1.wait_timeout_while(seen, LIMIT, runs);
    }
}

/// See [`Vm::look`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    text: usize,
    reports: [ReportAnswer; 2],
    pub(crate) pages: Vec<Vec<u8>>,
}

/// The pages that the guest writes, in the memory files of all slices that have been in this process.
fn pages() -> Vec<Vec<u8>> {
    let open = fs::read_dir("/proc/self/fd").expect("Linux lists them");
    let mut files = BTreeMap::new();
    for path in open.filter_map(|entry| Some(entry.ok()?.path())) {
        if fs::read_link(&path).is_ok_and(|name| name.to_string_lossy().contains(MEMORY_FILE)) {
            let file = File::open(&path).expect("open a memory file");
            files.insert(file.metadata().expect("it has a number").ino(), file);
        }
    }
    assert!(files.len() >= 2, "there are two slices");
    let page = |(file, at): (&File, u32)| {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, at.into()).expect("the file has all memory");
        bytes
    };
    files.values().flat_map(|file| PAGES.map(|at| page((file, at)))).collect()
}

fn spec(interrupts: Interrupts, slices: Vec<SliceSpec>, device: Option<DeviceSpec>) -> VmSpec {
    VmSpec {
        slices,
        interrupts,
        page_tables: PageTables::Auto,
        sample: None,
        clock_rate: 1.0,
        timer_spacing: "off".into(),
        hold_us: (20, 500),
        devices: device.into_iter().collect(),
        supervised: false,
        boots_at_home: false,
    }
}

/// What else is said to a bootstrap.
type More<'a> = &'a dyn Fn(BootstrapOptions) -> BootstrapOptions;

/// The API of a slice, on its control socket, as long as it lives.
fn serve(local: &LocalOptions) -> Server {
    Server::start(&local.desk, None).expect("serve the API")
}

fn local(
    (folder, sockets): (&Path, &Path),
    (slice, load_pause): (u16, Duration),
    offer: Offer,
) -> LocalOptions {
    let forms = forms(folder, slice);
    fs::create_dir_all(&forms).expect("make a folder");
    LocalOptions {
        engine_core: None,
        memory: Memory::Memfd,
        trace: false,
        mechanisms: Mechanisms::ALL,
        offer,
        control: Some(socket(sockets, slice)),
        desk: Desk::new(),
        on_full: OnFull::Report,
        clock_test: ClockTest::default(),
        checkpoints: Some(checkpoints(folder)),
        load_pause,
        forms: Some(forms),
    }
}

/// Where checkpoints go that are of no other test.
pub(crate) fn checkpoints(folder: &Path) -> PathBuf {
    folder.join("checkpoints")
}

fn socket(folder: &Path, slice: u16) -> PathBuf {
    folder.join(format!("{slice}.sock"))
}

fn forms(folder: &Path, slice: u16) -> PathBuf {
    folder.join(format!("forms-{slice}"))
}

/// An address that was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    listener.local_addr().expect("it listens")
}

/// Waits until somebody listens there. The caller that goes again does no harm.
fn wait_for_listener(address: SocketAddr) {
    let end = Instant::now() + LIMIT;
    while let Err(error) = TcpStream::connect(address) {
        assert!(Instant::now() < end, "{address}: {error}");
        thread::yield_now();
    }
}

fn run(line: &Line, slice: u16, work: impl FnOnce() -> End + Send + 'static) {
    let line = line.clone();
    line.change(|seen| drop(seen.ends.insert(slice, None)));
    thread::spawn(move || {
        let end = work();
        line.change(|seen| drop(seen.ends.insert(slice, Some(end))));
    });
}
