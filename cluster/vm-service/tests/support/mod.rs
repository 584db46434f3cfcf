//! A VM that is none: it has a placement, counts what is done to it, and refuses what it is told to refuse.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use migrate::{Change, MemoryPlace, Placement, PlacementOwner};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{env, fs, process};
use vmm::control::{
    Activity, CheckpointAnswer, CheckpointRequest, ControlSocket, Desk, OverseesVm, PausesVm,
    PlugsVcpus, Progress, Reason, Refusal, Relocates, Relocation, VcpusAnswer, VmHandles, VmName,
    WritesCheckpoints,
};
use wire::{Epoch, SliceId, VcpuId};

/// Name of the VM.
pub(crate) const NAME: &str = "vms/abababababababababababababababab";

/// A folder that goes away with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tessera-api-{}-{number}", process::id()));
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

/// What is held until it is let go.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn close(&self) {
        *self.0.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.0.lock().unwrap() = false;
        self.1.notify_all();
    }

    fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |closed| *closed).unwrap());
    }
}

/// Two slices, three vCPUs.
#[derive(Debug)]
pub(crate) struct FakeVm {
    owner: PlacementOwner,
    activity: Mutex<Option<Activity>>,
    /// What was done.
    pub(crate) effects: AtomicU32,
    /// Everything is refused so.
    pub(crate) refuses: Mutex<Option<Refusal>>,
    /// Moves wait here.
    pub(crate) gate: Gate,
}

impl FakeVm {
    pub(crate) fn new() -> Arc<Self> {
        let slices = [0, 1].map(SliceId);
        let memory = vec![
            MemoryPlace { frames: 0..512, home: slices[0] },
            MemoryPlace { frames: 512..1024, home: slices[1] },
        ];
        let vcpus = vec![slices[0], slices[0], slices[1]];
        let placement =
            Placement::new(Epoch(1), slices.to_vec(), vcpus, memory, Vec::new()).unwrap();
        Arc::new(Self {
            owner: PlacementOwner::new(slices[0], placement),
            activity: Mutex::default(),
            effects: AtomicU32::new(0),
            refuses: Mutex::default(),
            gate: Gate::default(),
        })
    }

    /// Has a desk where it is asked.
    pub(crate) fn attach(self: &Arc<Self>, desk: &Desk) {
        desk.attach_vm_of(VmName { vm: [0xab; 16], life: 0 }, self.owner.view());
        desk.attach_vm(VmHandles {
            pauses: self.clone(),
            relocates: self.clone(),
            plugs: self.clone(),
            checkpoints: self.clone(),
            oversees: self.clone(),
        });
    }

    pub(crate) fn effects(&self) -> u32 {
        self.effects.load(Ordering::SeqCst)
    }

    pub(crate) fn refuse(&self, refusal: Option<Refusal>) {
        *self.refuses.lock().unwrap() = refusal;
    }

    /// Each vCPU moves as a part of its own.
    pub(crate) fn change(&self, changes: &[Change]) {
        let epoch = self.owner.view().load().epoch();
        self.owner.advance(changes, Epoch(epoch.0 + 1)).unwrap();
    }

    fn effect(&self) -> Result<Duration, Refusal> {
        if let Some(refusal) = &*self.refuses.lock().unwrap() {
            return Err(refusal.clone());
        }
        self.effects.fetch_add(1, Ordering::SeqCst);
        Ok(Duration::from_millis(12))
    }

    fn changes(&self, what: &Relocation) -> Result<Vec<Change>, Refusal> {
        let placement = self.owner.view().load();
        let vcpus = |slice| placement.vcpus_on(slice);
        let invalid = |field: &str| Reason::Invalid { field: field.into() };
        let changes: Vec<_> = match what {
            Relocation::Vcpu { vcpu, to } => vec![Change::Vcpu { vcpu: *vcpu, to: *to }],
            Relocation::Drain { slice, .. } => {
                let to = SliceId(1 - slice.0.min(1));
                vcpus(*slice).into_iter().map(|vcpu| Change::Vcpu { vcpu, to }).collect()
            }
            Relocation::Consolidate { .. } => {
                let to = SliceId(0);
                vcpus(SliceId(1)).into_iter().map(|vcpu| Change::Vcpu { vcpu, to }).collect()
            }
            Relocation::Spread => vec![Change::Vcpu { vcpu: VcpuId(1), to: SliceId(1) }],
        };
        if changes.is_empty() {
            return Err(Refusal::new(Reason::NothingToDo, "nothing to do"));
        }
        let next = placement.next(&changes);
        next.map_err(|error| Refusal::new(invalid("slice"), error))?;
        Ok(changes)
    }
}

impl PausesVm for FakeVm {
    fn pause(&self) -> Result<Duration, Refusal> {
        let mut activity = self.activity.lock().unwrap();
        if *activity == Some(Activity::Pausing) {
            return Err(Refusal::new(Reason::Paused, "it is paused"));
        }
        let took = self.effect()?;
        *activity = Some(Activity::Pausing);
        Ok(took)
    }

    fn resume(&self) -> Result<Duration, Refusal> {
        let mut activity = self.activity.lock().unwrap();
        if *activity != Some(Activity::Pausing) {
            return Err(Refusal::new(Reason::NotPaused, "it is not paused"));
        }
        let took = self.effect()?;
        *activity = None;
        Ok(took)
    }
}

impl Relocates for FakeVm {
    fn relocate(
        &self,
        what: &Relocation,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refusal> {
        let changes = self.changes(what)?;
        let took = self.effect()?;
        *self.activity.lock().unwrap() = Some(Activity::Moving);
        for (done, change) in changes.iter().enumerate() {
            tell(Progress { done, total: changes.len(), next: format!("{change:?}") });
            self.gate.pass();
            self.change(std::slice::from_ref(change));
        }
        *self.activity.lock().unwrap() = None;
        Ok(took)
    }

    fn add(
        &self,
        request: &vmm::control::AddRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refusal> {
        let next = format!("a companion at {}", request.address);
        tell(Progress { done: 0, total: 1, next });
        let took = self.effect()?;
        self.change(&[Change::Join(SliceId(2))]);
        Ok(took)
    }

    fn plan(&self, what: &Relocation) -> Result<Vec<String>, Refusal> {
        let changes = self.changes(what)?;
        Ok(changes.iter().map(|change| format!("{change:?}")).collect())
    }

    fn advise(&self, seconds: u64, _: &mut dyn FnMut(Progress)) -> Result<Vec<String>, Refusal> {
        self.effect()?;
        Ok(vec![format!("counted for {seconds} s: stay")])
    }
}

impl PlugsVcpus for FakeVm {
    fn vcpus(&self) -> Result<VcpusAnswer, Refusal> {
        Ok(VcpusAnswer { present: vec![0, 1], absent: vec![2], ..VcpusAnswer::default() })
    }

    fn set_vcpus(&self, count: u32, _: &mut dyn FnMut(Progress)) -> Result<VcpusAnswer, Refusal> {
        self.effect()?;
        Ok(VcpusAnswer { present: (0..count).collect(), ..VcpusAnswer::default() })
    }
}

impl WritesCheckpoints for FakeVm {
    fn checkpoint(
        &self,
        request: &CheckpointRequest,
        _: &mut dyn FnMut(Progress),
    ) -> Result<CheckpointAnswer, Refusal> {
        let took = self.effect()?;
        let milliseconds = took.as_secs_f64() * 1e3;
        let digest = format!("of {}", request.path);
        Ok(CheckpointAnswer {
            milliseconds,
            paused_milliseconds: 1.5,
            bytes: 4096,
            pages: 1,
            digest,
            cut: 7,
        })
    }
}

impl OverseesVm for FakeVm {
    fn activity(&self) -> Option<Activity> {
        *self.activity.lock().unwrap()
    }

    fn power_button(&self) -> Result<(), Refusal> {
        self.effect().map(drop)
    }

    fn stop(&self, _: bool) -> Result<(), Refusal> {
        self.effect().map(drop)
    }
}

/// A fake VM that is served on a control socket.
pub(crate) struct Served {
    pub(crate) vm: Arc<FakeVm>,
    pub(crate) desk: Desk,
    // In this order they go: the server, then the socket.
    pub(crate) server: Option<tessera_vm_service::Server>,
    _socket: ControlSocket,
    folder: Folder,
}

impl Served {
    pub(crate) fn new() -> Self {
        let (folder, desk, vm) = (Folder::new(), Desk::new(), FakeVm::new());
        vm.attach(&desk);
        let server = tessera_vm_service::Server::start(&desk, None).unwrap();
        let socket = ControlSocket::open(&folder.0.join("vm.sock"), desk.clone()).unwrap();
        Self { vm, desk, server: Some(server), _socket: socket, folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.0.join("vm.sock")
    }

    pub(crate) async fn channel(&self) -> tessera_vm_service::Channel {
        connect(&self.path()).await
    }
}

pub(crate) async fn connect(path: &Path) -> tessera_vm_service::Channel {
    tessera_vm_service::connect(path).await.unwrap()
}
