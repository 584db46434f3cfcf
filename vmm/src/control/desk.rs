//! Answers what is asked of a slice, in whichever language it has come: lines on the control socket, or gRPC.
//!
//! ```text
//!   nothing to ask about --attach_vm_of--> which VM, where its parts are --attach--> its memory engine too
//!   what concerns the whole VM: refused --attach_vm--> done here --detach_vm--> refused: another slice coordinates
//! ```

use super::answering::Answering;
use super::caller::TakesStreams;
use super::message::{Answer, PlacementAnswer, Progress, ReportAnswer, Request, TuneRequest};
use super::places::places;
use super::refusal::{Activity, Reason, Refusal};
use super::view::View;
use super::vm::VmHandles;
use devices::delegate::Counts;
use dsm::{Handle, HoldError, HoldPolicy, Tuning};
use migrate::PlacementView;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The memory engine's time for an answer.
const ENGINE_LIMIT: Duration = Duration::from_secs(2);
/// For a slice that has come to coordinate to take requests.
const READY_LIMIT: Duration = Duration::from_secs(2);

/// Tells what delegated devices have counted, once there are any.
type Delegated = Arc<dyn Fn() -> Option<Counts> + Send + Sync>;

/// Which VM it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmName {
    /// The same for all of its lives.
    pub vm: [u8; 16],
    /// Which of them: 0, and a greater number each time that it goes on from a checkpoint.
    pub life: u64,
}

#[derive(Clone, Debug)]
struct Facts {
    name: VmName,
    placement: PlacementView,
}

/// What has to do with memory, once it is there.
#[derive(Clone)]
struct Source {
    placement: PlacementView,
    memory: Handle,
    delegated: Delegated,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("slice", &self.placement.local()).finish_non_exhaustive()
    }
}

/// How a VM stands, as this slice sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which VM it is.
    pub name: VmName,
    /// This slice.
    pub local: u16,
    /// Where everything is.
    pub placement: PlacementAnswer,
    /// Whether requests that concern the whole VM are taken here.
    pub leads: bool,
    /// What is done to it, if that is known here.
    pub activity: Option<Activity>,
}

#[derive(Debug, Default)]
struct Inner {
    facts: Mutex<Option<Facts>>,
    source: Mutex<Option<Source>>,
    /// On the slice that coordinates, once the guest runs.
    vm: Mutex<Option<VmHandles>>,
    /// Requests that are being answered.
    answering: Arc<AtomicUsize>,
    /// Takes connections to the socket that speak HTTP/2.
    http2: OnceLock<Arc<dyn TakesStreams>>,
}

/// Where a slice is asked. Clones are of the same slice.
#[derive(Clone, Debug, Default)]
pub struct Desk(Arc<Inner>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Where nothing can be asked about yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Connections to the control socket that speak HTTP/2 go there. Only the first who wants them gets them.
    pub fn give_http2_to(&self, taker: Arc<dyn TakesStreams>) {
        // A second one is a mistake of the program, and harmless.
        let _ = self.0.http2.set(taker);
    }

    pub(super) fn http2(&self) -> Option<&Arc<dyn TakesStreams>> {
        self.0.http2.get()
    }

    /// From now on this is a slice of that VM.
    pub fn attach_vm_of(&self, name: VmName, placement: PlacementView) {
        *locked(&self.0.facts) = Some(Facts { name, placement });
    }

    /// From now on there is a memory engine to ask about. `delegated` tells what its devices have counted, if there are any
    /// yet; it returns at once.
    pub fn attach(
        &self,
        placement: PlacementView,
        memory: Handle,
        delegated: impl Fn() -> Option<Counts> + Send + Sync + 'static,
    ) {
        let delegated = Arc::new(delegated);
        *locked(&self.0.source) = Some(Source { placement, memory, delegated });
    }

    /// From now on the VM can be paused and written down, its parts move, and its vCPUs come and go.
    pub fn attach_vm(&self, vm: VmHandles) {
        *locked(&self.0.vm) = Some(vm);
    }

    /// From now on that is asked of another slice. Whoever has asked already is answered here.
    pub fn detach_vm(&self) {
        *locked(&self.0.vm) = None;
    }

    /// A request is being answered until what is returned is dropped.
    #[must_use]
    pub fn begin_answer(&self) -> Answering {
        Answering::begin(Arc::clone(&self.0.answering))
    }

    /// Waits until clients have the answers to what they have asked for, or this time is over.
    pub fn wait_until_answered(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.0.answering.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// How the VM stands; none as long as there is none. It never waits.
    #[must_use]
    pub fn look(&self) -> Option<Look> {
        let Facts { name, placement } = locked(&self.0.facts).clone()?;
        let vm = locked(&self.0.vm).clone();
        let activity = vm.as_ref().and_then(|vm| vm.oversees.activity());
        let (local, leads) = (placement.local().0, vm.is_some());
        Some(Look { name, local, placement: places(&placement.load(), name.life), leads, activity })
    }

    /// Answers a request; `tell` takes what there is to say before that. It may wait for long.
    #[must_use]
    pub fn ask(&self, request: &Request, tell: &mut dyn FnMut(Progress)) -> Answer {
        self.answer(&mut View::default(), request, tell)
    }

    /// The same for a client that has seen this much before.
    pub(super) fn answer(
        &self,
        view: &mut View,
        request: &Request,
        tell: &mut dyn FnMut(Progress),
    ) -> Answer {
        match request {
            Request::Trace(request) => self.with_memory(|it| match it.memory.trace(ENGINE_LIMIT) {
                Some(report) => Answer::Trace(view.answer(it.placement.local(), report, request)),
                None => silent(),
            }),
            Request::Report(_) => self.with_memory(report),
            Request::ForgetDevicePages(request) => self.with_memory(|it| {
                it.memory.forget_device_pages(request.only);
                report(it)
            }),
            Request::Tune(request) => self.with_memory(|it| match tuning(request) {
                Ok(tuning) => {
                    it.memory.tune(tuning);
                    report(it)
                }
                Err(error) => {
                    let reason = Reason::Invalid { field: "hold".into() };
                    Answer::Refused(Refusal::new(reason, error))
                }
            }),
            Request::Placement(_) => {
                let look = self.look();
                look.map_or_else(|| Answer::Refused(no_vm()), |it| Answer::Placement(it.placement))
            }
            Request::Pause(_)
            | Request::Resume(_)
            | Request::MoveVcpu(_)
            | Request::Drain(_)
            | Request::Consolidate(_)
            | Request::Spread(_)
            | Request::Add(_)
            | Request::Vcpus(_)
            | Request::Checkpoint(_)
            | Request::Advise(_)
            | Request::Plan(_)
            | Request::PowerButton(_)
            | Request::Stop(_) => {
                // Other clients do not wait for this one's answer.
                let vm = self.vm();
                vm.map_or_else(
                    || Answer::Refused(self.whom_to_ask()),
                    |vm| vm.answer(request, tell),
                )
            }
        }
    }

    /// The VM, if this slice coordinates it. One that has come to do so is ready soon.
    fn vm(&self) -> Option<VmHandles> {
        let end = Instant::now() + READY_LIMIT;
        loop {
            let vm = locked(&self.0.vm).clone();
            let facts = locked(&self.0.facts).clone();
            let comes = facts.is_some_and(|facts| {
                facts.placement.load().coordinator() == facts.placement.local()
            });
            if vm.is_some() || !comes || Instant::now() > end {
                return vm;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn whom_to_ask(&self) -> Refusal {
        let facts = locked(&self.0.facts);
        let Some(Facts { placement, .. }) = &*facts else {
            let message = "ask the slice that coordinates the VM, once its guest runs";
            return Refusal::new(Reason::NoVm, message);
        };
        let slice = placement.load().coordinator();
        let message = format!("ask {slice}, which coordinates the VM, once the guest runs");
        // This one does, but is not ready.
        let not_yet = slice == placement.local();
        let leader = Some(slice.0);
        Refusal::new(if not_yet { Reason::NoVm } else { Reason::NotLeader { leader } }, message)
    }

    fn with_memory(&self, ask: impl FnOnce(&Source) -> Answer) -> Answer {
        // Other clients do not wait for this one's answer.
        let source = locked(&self.0.source).clone();
        let Some(source) = source else {
            let reason =
                if locked(&self.0.facts).is_some() { Reason::NoEngine } else { Reason::NoVm };
            let none = "no memory engine runs here: no VM yet, or one of a single slice without \
                        --secret-file";
            return Answer::Refused(Refusal::new(reason, none));
        };
        ask(&source)
    }
}

fn no_vm() -> Refusal {
    Refusal::new(Reason::NoVm, "there is no VM here yet")
}

fn tuning(request: &TuneRequest) -> Result<Tuning, HoldError> {
    let hold = request.hold_us.map(HoldPolicy::between).transpose()?;
    Ok(Tuning { hold, correlation_prefetch: request.correlation })
}

fn report(Source { placement, memory, delegated }: &Source) -> Answer {
    let Some(memory) = memory.report(ENGINE_LIMIT) else { return silent() };
    let (slice, process, delegated) = (placement.local().0, std::process::id(), delegated());
    Answer::Report(Box::new(ReportAnswer { slice, process, memory, delegated }))
}

fn silent() -> Answer {
    Answer::Refused(Refusal::new(Reason::EngineSilent, "the memory engine does not answer"))
}
