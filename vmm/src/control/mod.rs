//! The control socket of a slice: questions of people and programs on the same host.
//!
//! ```text
//!   open: nobody there, or nobody who answers any more --> listening --attach--> answering
//!     |                                                       |                      |
//!     +--another process answers there: refused               +---------drop---------+--> removed
//! ```
//!
//! A UNIX socket that only its owner may use. Each line is a [`Request`] and is answered by one line, an
//! [`Answer`], both JSON. Lines, clients and waits are bounded. A client may go at any time; one that does
//! not read its answer is dropped.

mod client;
mod message;
mod places;
mod view;
mod vm;

pub use client::{Client, ClientError};
pub use message::{
    AddRequest, AdviceAnswer, AdviseRequest, Answer, CheckpointAnswer, CheckpointRequest,
    ConsolidateRequest, DoneAnswer, DrainRequest, ForgetRequest, LineError, MoveVcpuRequest,
    PauseRequest, PlacementAnswer, PlacementRequest, Progress, RELEASED_MAX, REQUEST_MAX,
    ReportAnswer, ReportRequest, Request, ResumeRequest, Since, SlicePlaces, SpreadRequest,
    TraceAnswer, TraceRequest, TuneRequest, VcpusAnswer, VcpusRequest,
};
pub use view::TOP_MAX;
pub use vm::{PausesVm, PlugsVcpus, Relocates, Relocation, VmHandles, WritesCheckpoints};

pub use crate::local_socket::SocketError;

use crate::local_socket::LocalSocket;
use devices::delegate::Counts;
use dsm::{Handle, HoldError, HoldPolicy, Tuning};
use message::read_line;
use migrate::PlacementView;
use places::places;
use rustix::net::Shutdown as Ends;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use view::View;

/// Clients at a time.
const CLIENTS_MAX: usize = 8;
/// The memory engine's time for an answer.
const ENGINE_LIMIT: Duration = Duration::from_secs(2);
/// For a slice that has come to coordinate to take requests.
const READY_LIMIT: Duration = Duration::from_secs(2);
/// A client's time to take an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Tells what delegated devices have counted, once there are any.
type Delegated = Arc<dyn Fn() -> Option<Counts> + Send + Sync>;

/// What can be asked about, once it is there.
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

#[derive(Debug, Default)]
struct Shared {
    source: Mutex<Option<Source>>,
    /// On the slice that coordinates, once the guest runs.
    vm: Mutex<Option<VmHandles>>,
    /// Requests that are being answered.
    answering: AtomicUsize,
    /// By number; none once the socket is closed.
    clients: Mutex<Option<BTreeMap<u64, UnixStream>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listening control socket. Its name goes with it.
#[derive(Debug)]
pub struct ControlSocket {
    socket: Arc<LocalSocket>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at a path. What a process that is gone has left there is replaced.
    ///
    /// # Errors
    /// Another process listens there, the name is taken by something else, or the folder cannot be
    /// written.
    pub fn open(path: &Path) -> Result<Self, SocketError> {
        let socket = Arc::new(LocalSocket::open(path)?);
        let shared =
            Arc::new(Shared { clients: Mutex::new(Some(BTreeMap::new())), ..Shared::default() });
        let (own, clients) = (Arc::clone(&socket), Arc::clone(&shared));
        let run = move || accept(own.listener(), &clients);
        let thread = Builder::new().name("control".into()).spawn(run);
        let failed = |source| SocketError::Listen { path: path.to_owned(), source };
        Ok(Self { socket, shared, thread: Some(thread.map_err(failed)?) })
    }

    /// From now on there is a slice to ask about. `delegated` tells what its devices have counted, if there are any
    /// yet; it returns at once.
    pub fn attach(
        &self,
        placement: PlacementView,
        memory: Handle,
        delegated: impl Fn() -> Option<Counts> + Send + Sync + 'static,
    ) {
        let delegated = Arc::new(delegated);
        *locked(&self.shared.source) = Some(Source { placement, memory, delegated });
    }

    /// What brings and takes what can be done to the VM.
    #[must_use]
    pub fn handle(&self) -> ControlHandle {
        ControlHandle(Arc::clone(&self.shared))
    }

    /// Waits until clients have the answers to what they have asked for, or this time is over.
    pub fn wait_until_answered(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.shared.answering.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A way to the requests of a control socket that concern the whole VM. Clones are of the same socket.
#[derive(Clone, Debug)]
pub struct ControlHandle(Arc<Shared>);

impl ControlHandle {
    /// From now on the VM can be paused and written down, its parts move, and its vCPUs come and go.
    pub fn attach_vm(&self, vm: VmHandles) {
        *locked(&self.0.vm) = Some(vm);
    }

    /// From now on that is asked of another slice. Whoever has asked already is answered here.
    pub fn detach_vm(&self) {
        *locked(&self.0.vm) = None;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.socket.remove();
        // Ends the thread's wait for callers.
        let _ = rustix::net::shutdown(self.socket.listener(), Ends::Both);
        for stream in
            locked(&self.shared.clients).take().into_iter().flat_map(BTreeMap::into_values)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for number in 0u64.. {
        let Ok((stream, _)) = listener.accept() else {
            // The end, or no descriptors: a look at the list tells which.
            if locked(&shared.clients).is_none() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if let Err(error) = take(stream, number, shared) {
            tracing::debug!(%error, "a client of the control socket is not served");
        }
    }
}

fn take(stream: UnixStream, number: u64, shared: &Arc<Shared>) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    let mut clients = locked(&shared.clients);
    let Some(clients) = clients.as_mut() else { return Ok(()) };
    if clients.len() >= CLIENTS_MAX {
        let cause = format!("{CLIENTS_MAX} clients are here already");
        return send(&mut &stream, &Answer::Refused(cause));
    }
    clients.insert(number, stream.try_clone()?);
    let own = Arc::clone(shared);
    let run = move || {
        if let Err(error) = serve(&stream, &own) {
            tracing::debug!(%error, "a client of the control socket is dropped");
        }
        if let Some(clients) = locked(&own.clients).as_mut() {
            clients.remove(&number);
        }
    };
    let started = Builder::new().name("control-client".into()).spawn(run);
    if started.is_err() {
        clients.remove(&number);
    }
    started.map(drop)
}

/// A request is being answered until this is dropped.
struct Answering<'a>(&'a Shared);

impl<'a> Answering<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.answering.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers a client until it goes.
fn serve(stream: &UnixStream, shared: &Shared) -> Result<(), LineError> {
    let mut lines = BufReader::new(stream);
    let mut view = View::default();
    loop {
        let line = read_line(&mut lines, REQUEST_MAX);
        let _answering = Answering::begin(shared);
        let answer = match line {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => match Request::parse(&line) {
                Ok(request) => {
                    // What was begun goes on when the client has gone.
                    let mut listens = true;
                    let mut tell = |progress| {
                        listens =
                            listens && send(&mut &*stream, &Answer::Progress(progress)).is_ok();
                    };
                    answer(shared, &mut view, &request, &mut tell)
                }
                Err(error) => Answer::Refused(format!("this is no request: {error}")),
            },
            Err(error @ LineError::TooLong(_)) => {
                // Where the next line begins is not known.
                send(&mut &*stream, &Answer::Refused(error.to_string()))?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        send(&mut &*stream, &answer)?;
    }
}

fn send(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Answers a request; `tell` takes what there is to say before that.
fn answer(
    shared: &Shared,
    view: &mut View,
    request: &Request,
    tell: &mut dyn FnMut(Progress),
) -> Answer {
    match request {
        Request::Trace(request) => with_memory(shared, |it| match it.memory.trace(ENGINE_LIMIT) {
            Some(report) => Answer::Trace(view.answer(it.placement.local(), report, request)),
            None => silent(),
        }),
        Request::Report(_) => with_memory(shared, report),
        Request::ForgetDevicePages(request) => with_memory(shared, |it| {
            it.memory.forget_device_pages(request.only);
            report(it)
        }),
        Request::Tune(request) => with_memory(shared, |it| match tuning(request) {
            Ok(tuning) => {
                it.memory.tune(tuning);
                report(it)
            }
            Err(error) => Answer::Refused(error.to_string()),
        }),
        Request::Placement(_) => {
            with_memory(shared, |it| Answer::Placement(places(&it.placement.load())))
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
        | Request::Advise(_) => {
            // Other clients do not wait for this one's answer.
            let vm = vm(shared);
            vm.map_or_else(|| Answer::Refused(whom_to_ask(shared)), |vm| vm.answer(request, tell))
        }
    }
}

/// The VM, if this slice coordinates it. One that has come to do so is ready soon.
fn vm(shared: &Shared) -> Option<VmHandles> {
    let end = Instant::now() + READY_LIMIT;
    loop {
        let vm = locked(&shared.vm).clone();
        let source = locked(&shared.source).clone();
        let comes = source.is_some_and(|source| {
            source.placement.load().coordinator() == source.placement.local()
        });
        if vm.is_some() || !comes || Instant::now() > end {
            return vm;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn whom_to_ask(shared: &Shared) -> String {
    let source = locked(&shared.source);
    let known = source.as_ref().map(|source| source.placement.load().coordinator());
    match known {
        Some(slice) => format!("ask {slice}, which coordinates the VM, once the guest runs"),
        None => "ask the slice that coordinates the VM, once its guest runs".into(),
    }
}

fn with_memory(shared: &Shared, ask: impl FnOnce(&Source) -> Answer) -> Answer {
    // Other clients do not wait for this one's answer.
    let source = locked(&shared.source).clone();
    let none =
        "no memory engine runs here: no VM yet, or one of a single slice without --secret-file";
    source.map_or_else(|| Answer::Refused(none.into()), |source| ask(&source))
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
    Answer::Refused("the memory engine does not answer".into())
}
