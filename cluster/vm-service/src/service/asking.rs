//! Asks the VM, and takes its answers apart. What may wait runs on threads of its own, of which there are few.

use crate::operations::any;
use crate::problem::{Problem, invalid, other_answer, refused, status};
use crate::shape;
use control::v1::tune_dsm_request::HoldWindow;
use control::v1::{DsmReport, MovePartsResponse, Vcpus, Vm};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::Status;
use vmm::control::{
    Answer, Desk, Look, PlanRequest, Progress, Reason, Refusal, Request, VcpusRequest,
};

type Result<T> = std::result::Result<T, Status>;

/// Hears how far something has come.
pub(super) type Tell<'a> = &'a mut dyn FnMut(Progress);

/// A slice that waits for its VM cannot say more.
const NO_VM: &str =
    "there is no VM here yet: ask the slice that coordinates the VM, once its guest runs";
/// Calls that wait for the VM at a time, beside operations.
const CALLS_MAX: usize = 16;

/// Asks one slice. Clones ask the same.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    desk: Desk,
    calls: Arc<Semaphore>,
}

impl Asking {
    pub(super) fn new(desk: Desk) -> Self {
        Self { desk, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// How the VM stands.
    pub(super) fn look(&self) -> Result<Look> {
        let none = || status(&Problem::Vm(Reason::NoVm), NO_VM);
        self.desk.look().ok_or_else(none)
    }

    /// The same for a caller who names it, and perhaps a state of it.
    pub(super) fn check(&self, name: &str, etag: &str) -> Result<Look> {
        let look = self.look()?;
        shape::check_name(name, &look)?;
        let current = shape::etag(&look);
        if !etag.is_empty() && etag != current {
            let text = format!("the VM has changed: its etag is {current}");
            return Err(status(&Problem::EtagMismatch { current }, &text));
        }
        Ok(look)
    }

    pub(super) fn vm(&self) -> Result<Vm> {
        self.look().map(|look| shape::vm(&look))
    }

    /// Does something that waits.
    pub(super) async fn wait<A: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<A> + Send + 'static,
    ) -> Result<A> {
        let Ok(place) = Arc::clone(&self.calls).try_acquire_owned() else {
            let text = format!("{CALLS_MAX} calls wait for the VM already");
            return Err(status(&Problem::TooManyCalls, &text));
        };
        let own = self.clone();
        let answering = self.desk.begin_answer();
        let done = spawn_blocking(move || {
            let result = work(&own);
            drop((place, answering));
            result
        });
        done.await.unwrap_or_else(|_| Err(Status::unavailable("the process ends")))
    }

    /// The answer, which is no refusal.
    pub(super) fn ask(&self, request: &Request, tell: Tell<'_>) -> Result<Answer> {
        match self.desk.ask(request, tell) {
            Answer::Refused(refusal) => Err(refused(refusal)),
            answer => Ok(answer),
        }
    }

    /// Has something done; how long it took.
    pub(super) fn done(&self, request: &Request) -> Result<prost_types::Duration> {
        match self.ask(request, &mut |_| {})? {
            Answer::Done(done) => Ok(shape::milliseconds(done.milliseconds)),
            _ => Err(other_answer()),
        }
    }

    /// Has parts moved.
    pub(super) fn parts(&self, request: &Request, tell: Tell<'_>) -> Result<prost_types::Any> {
        match self.ask(request, tell)? {
            Answer::Done(done) => {
                let took = Duration::try_from_secs_f64(done.milliseconds / 1e3).unwrap_or_default();
                Ok(any("MovePartsResponse", &parts_response(took, Vec::new())))
            }
            _ => Err(other_answer()),
        }
    }

    /// Has parts moved one after another.
    pub(super) fn relocate(
        &self,
        moves: &[PlanRequest],
        tell: Tell<'_>,
    ) -> Result<prost_types::Any> {
        if let [one] = moves {
            return self.parts(&request_of(*one), tell);
        }
        let (total, mut milliseconds) = (moves.len(), 0.0);
        for (done, one) in moves.iter().enumerate() {
            tell(Progress { done, total, next: words(one) });
            // Steps of a step are not told.
            match self.desk.ask(&request_of(*one), &mut |_| {}) {
                Answer::Done(answer) => milliseconds += answer.milliseconds,
                Answer::Refused(refusal) if done == 0 => return Err(refused(refusal)),
                Answer::Refused(refusal) => {
                    return Err(refused(partly(done, total, one, &refusal)));
                }
                _ => return Err(other_answer()),
            }
        }
        let took = Duration::try_from_secs_f64(milliseconds / 1e3).unwrap_or_default();
        Ok(any("MovePartsResponse", &parts_response(took, Vec::new())))
    }

    /// What moving parts would come to.
    pub(super) fn plan(&self, moves: &[PlanRequest]) -> Result<Vec<String>> {
        let mut steps = Vec::new();
        for one in moves {
            match self.ask(&Request::Plan(*one), &mut |_| {})? {
                Answer::Plan(plan) => steps.extend(plan.steps),
                _ => return Err(other_answer()),
            }
        }
        Ok(steps)
    }

    pub(super) fn vcpus(&self, count: Option<u32>, tell: Tell<'_>) -> Result<Vcpus> {
        match self.ask(&Request::Vcpus(VcpusRequest { count }), tell)? {
            Answer::Vcpus(vcpus) => Ok(shape::vcpus(vcpus)),
            _ => Err(other_answer()),
        }
    }

    /// What is answered by the counters of this slice.
    pub(super) fn report(&self, request: &Request) -> Result<DsmReport> {
        match self.ask(request, &mut |_| {})? {
            Answer::Report(report) => shape::report(&report),
            _ => Err(other_answer()),
        }
    }
}

fn request_of(what: PlanRequest) -> Request {
    match what {
        PlanRequest::MoveVcpu(request) => Request::MoveVcpu(request),
        PlanRequest::Drain(request) => Request::Drain(request),
        PlanRequest::Consolidate(request) => Request::Consolidate(request),
        PlanRequest::Spread(request) => Request::Spread(request),
    }
}

fn words(what: &PlanRequest) -> String {
    match what {
        PlanRequest::MoveVcpu(one) => format!("vcpu{} to slice{}", one.vcpu, one.slice),
        PlanRequest::Drain(one) => format!("drain slice{}", one.slice),
        PlanRequest::Consolidate(_) => "consolidate".into(),
        PlanRequest::Spread(_) => "spread".into(),
    }
}

fn partly(done: usize, total: usize, one: &PlanRequest, why: &Refusal) -> Refusal {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let text = format!(
        "{done} of {total} moves are done, and the next one ({}) failed: {why}",
        words(one)
    );
    Refusal::new(Reason::Partly { done: count(done), total: count(total) }, text)
}

pub(super) fn parts_response(took: Duration, steps: Vec<String>) -> MovePartsResponse {
    MovePartsResponse { took: Some(shape::duration(took)), steps }
}

/// Bounds of the hold window, in microseconds.
pub(super) fn hold_us(window: &HoldWindow) -> Result<(u64, u64)> {
    let bound = |field: &str, time: Option<prost_types::Duration>| {
        let time = time.ok_or_else(|| invalid(field, "a hold window has both bounds"))?;
        let micros = shape::time(field, time)?.as_micros();
        u64::try_from(micros).map_err(|_| invalid(field, "it is too long"))
    };
    Ok((bound("hold.min", window.min)?, bound("hold.max", window.max)?))
}
