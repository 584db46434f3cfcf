//! `VmService` over what is asked at the desk of a slice.
//!
//! ```text
//!   request --name, etag, request_id--> first of its id --Request--> Desk::ask, on a thread that may wait --Answer--> response
//!                                                   \--it takes long--> an operation, with the same work
//! ```

mod asking;

use crate::operations::{Operations, any};
use crate::problem::{invalid, other_answer};
use crate::requests::Requests;
use crate::shape;
use crate::watch::{Watch, Watchers};
use asking::{Asking, parts_response};
use control::longrunning::Operation;
use control::longrunning::operations_server::Operations as OperationsService;
use control::v1::vm_service_server::VmService;
use control::v1::{
    AddSliceRequest, AdviseRequest, AdviseResponse, ConsolidateRequest, CreateCheckpointRequest,
    CreateCheckpointResponse, DrainSliceRequest, DsmReport, ForgetDevicePagesRequest,
    GetDsmReportRequest, GetTraceRequest, GetVcpusRequest, GetVmRequest, MoveVcpusRequest,
    PauseVmRequest, PauseVmResponse, PowerButtonRequest, PowerButtonResponse, ResumeVmRequest,
    ResumeVmResponse, SetVcpusRequest, SpreadRequest, StopVmRequest, StopVmResponse, Trace,
    TuneDsmRequest, Vcpus, Vm, WatchVmRequest,
};
use std::net::SocketAddr;
use std::time::Duration;
use tonic::{Request, Response, Status};
use vmm::control::{self as vm, Answer, Desk, PlanRequest, TOP_MAX};

type Result<T> = std::result::Result<T, Status>;

/// Moves of one call.
const MOVES_MAX: usize = 256;
/// Pages of a trace unless asked.
const PAGES: usize = 20;
/// For advice unless asked.
const COUNT_FOR: Duration = Duration::from_secs(30);

/// The API of one slice. Clones are of the same slice.
#[derive(Clone, Debug)]
pub struct VmApi {
    asking: Asking,
    operations: Operations,
    requests: Requests,
    watchers: Watchers,
}

impl VmApi {
    /// Of the slice that is asked at this desk.
    #[must_use]
    pub fn new(desk: Desk) -> Self {
        Self {
            operations: Operations::new(desk.clone()),
            asking: Asking::new(desk),
            requests: Requests::default(),
            watchers: Watchers::new(),
        }
    }

    /// Serves the operations that this one begins.
    #[must_use]
    pub fn operations(&self) -> impl OperationsService + use<> {
        self.operations.clone()
    }

    pub(crate) fn has_vm(&self) -> bool {
        self.asking.look().is_ok()
    }

    /// Tells those who watch how the VM stands, once there are any.
    pub(crate) async fn tell_watchers(&self) {
        self.watchers.wanted().await;
        if let Ok(look) = self.asking.look() {
            self.watchers.publish(shape::vm(&look));
        }
    }

    /// The process ends: nobody watches any more.
    pub(crate) fn end(&self) {
        self.watchers.end();
    }

    /// Begins an operation of the first request of its id.
    async fn operate<Q: prost::Message>(
        &self,
        (method, unit): (&'static str, &'static str),
        (name, etag, id): (&str, &str, &str),
        request: &Q,
        work: impl FnOnce(&Asking, asking::Tell<'_>) -> Result<prost_types::Any> + Send + 'static,
    ) -> Result<Response<Operation>> {
        let (own, name, etag) = (self.clone(), name.to_owned(), etag.to_owned());
        let request_id = id.to_owned();
        let begun = self.requests.once((method, id), request, move || async move {
            own.asking.check(&name, &etag)?;
            let asking = own.asking.clone();
            let named = (method, &request_id[..], unit);
            own.operations.begin(named, move |tell| work(&asking, tell))
        });
        begun.await.map(Response::new)
    }

    /// Moves parts, or says what that would come to.
    async fn relocate<Q: prost::Message>(
        &self,
        method: &'static str,
        named: (&str, &str, &str),
        request: &Q,
        (moves, validate_only): (Vec<PlanRequest>, bool),
    ) -> Result<Response<Operation>> {
        if !validate_only {
            let work = move |asking: &Asking, tell: asking::Tell<'_>| asking.relocate(&moves, tell);
            return self.operate((method, "steps"), named, request, work).await;
        }
        let (name, etag, id) = named;
        self.asking.check(name, etag)?;
        let steps = self.asking.wait(move |asking| asking.plan(&moves)).await?;
        let response = any("MovePartsResponse", &parts_response(Duration::ZERO, steps));
        self.operations.done((method, id), response).map(Response::new)
    }

    /// Has a call done once that answers when it is done.
    async fn call<Q, A>(
        &self,
        method: &'static str,
        (name, etag, id): (&str, &str, &str),
        request: &Q,
        work: impl FnOnce(&Asking) -> Result<A> + Send + 'static,
    ) -> Result<Response<A>>
    where
        Q: prost::Message,
        A: prost::Message + Default + 'static,
    {
        let (asking, name, etag) = (self.asking.clone(), name.to_owned(), etag.to_owned());
        let done = self.requests.once((method, id), request, move || async move {
            asking.check(&name, &etag)?;
            asking.wait(work).await
        });
        done.await.map(Response::new)
    }
}

#[tonic::async_trait]
impl VmService for VmApi {
    type WatchVmStream = Watch;

    async fn get_vm(&self, request: Request<GetVmRequest>) -> Result<Response<Vm>> {
        let look = self.asking.check(&request.into_inner().name, "")?;
        Ok(Response::new(shape::vm(&look)))
    }

    async fn watch_vm(&self, request: Request<WatchVmRequest>) -> Result<Response<Watch>> {
        let WatchVmRequest { name, resume_token, bookmark_interval } = request.into_inner();
        let look = self.asking.check(&name, "")?;
        let bookmarks = bookmark_interval.map(|time| shape::time("bookmark_interval", time));
        let vm = shape::vm(&look);
        self.watchers.watch(vm, &resume_token, bookmarks.transpose()?).map(Response::new)
    }

    async fn pause_vm(
        &self,
        request: Request<PauseVmRequest>,
    ) -> Result<Response<PauseVmResponse>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let work = |asking: &Asking| {
            let took = Some(asking.done(&vm::Request::Pause(vm::PauseRequest {}))?);
            Ok(PauseVmResponse { vm: Some(asking.vm()?), took })
        };
        self.call("PauseVm", named, &request, work).await
    }

    async fn resume_vm(
        &self,
        request: Request<ResumeVmRequest>,
    ) -> Result<Response<ResumeVmResponse>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let work = |asking: &Asking| {
            let took = Some(asking.done(&vm::Request::Resume(vm::ResumeRequest {}))?);
            Ok(ResumeVmResponse { vm: Some(asking.vm()?), took })
        };
        self.call("ResumeVm", named, &request, work).await
    }

    async fn power_button(
        &self,
        request: Request<PowerButtonRequest>,
    ) -> Result<Response<PowerButtonResponse>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let work = |asking: &Asking| {
            asking.done(&vm::Request::PowerButton(vm::PowerButtonRequest {}))?;
            Ok(PowerButtonResponse { vm: Some(asking.vm()?) })
        };
        self.call("PowerButton", named, &request, work).await
    }

    async fn stop_vm(&self, request: Request<StopVmRequest>) -> Result<Response<StopVmResponse>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let force = request.force;
        let work = move |asking: &Asking| {
            asking.done(&vm::Request::Stop(vm::StopRequest { force }))?;
            Ok(StopVmResponse { vm: Some(asking.vm()?) })
        };
        self.call("StopVm", named, &request, work).await
    }

    async fn add_slice(&self, request: Request<AddSliceRequest>) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let address: SocketAddr = request
            .address
            .parse()
            .map_err(|_| invalid("address", "address is ADDRESS:PORT, with a numeric address"))?;
        let number = request.number.map(u16::try_from).transpose();
        let number = number.map_err(|_| invalid("number", "it is too large"))?;
        let empty = request.empty;
        let add = vm::Request::Add(vm::AddRequest { address, empty, number });
        let work = move |asking: &Asking, tell: asking::Tell<'_>| asking.parts(&add, tell);
        self.operate(("AddSlice", "steps"), named, &request, work).await
    }

    async fn drain_slice(
        &self,
        request: Request<DrainSliceRequest>,
    ) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let slice = shape::slice_number(&request.name, &self.asking.look()?)?;
        let named = ("", &request.etag[..], &request.request_id[..]);
        let to = request.to.map(u16::try_from).transpose();
        let to = to.map_err(|_| invalid("to", "it is too large"))?;
        let moves = vec![PlanRequest::Drain(vm::DrainRequest { slice, stay: request.stay, to })];
        self.relocate("DrainSlice", named, &request, (moves, request.validate_only)).await
    }

    async fn move_vcpus(&self, request: Request<MoveVcpusRequest>) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        if !(1..=MOVES_MAX).contains(&request.moves.len()) {
            return Err(invalid("moves", &format!("there are 1 to {MOVES_MAX} moves")));
        }
        let moves = request.moves.iter().map(|one| {
            let slice =
                u16::try_from(one.slice).map_err(|_| invalid("moves.slice", "it is too large"))?;
            Ok(PlanRequest::MoveVcpu(vm::MoveVcpuRequest { vcpu: one.vcpu, slice }))
        });
        let moves = moves.collect::<Result<Vec<_>>>()?;
        self.relocate("MoveVcpus", named, &request, (moves, request.validate_only)).await
    }

    async fn consolidate(
        &self,
        request: Request<ConsolidateRequest>,
    ) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let moves = vec![PlanRequest::Consolidate(vm::ConsolidateRequest { stay: request.stay })];
        self.relocate("Consolidate", named, &request, (moves, request.validate_only)).await
    }

    async fn spread(&self, request: Request<SpreadRequest>) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let moves = vec![PlanRequest::Spread(vm::SpreadRequest {})];
        self.relocate("Spread", named, &request, (moves, request.validate_only)).await
    }

    async fn get_vcpus(&self, request: Request<GetVcpusRequest>) -> Result<Response<Vcpus>> {
        self.asking.check(&request.into_inner().name, "")?;
        self.asking.wait(|asking| asking.vcpus(None, &mut |_| {})).await.map(Response::new)
    }

    async fn set_vcpus(&self, request: Request<SetVcpusRequest>) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let count = Some(request.count);
        let work = move |asking: &Asking, tell: asking::Tell<'_>| {
            Ok(any("Vcpus", &asking.vcpus(count, tell)?))
        };
        self.operate(("SetVcpus", "vCPUs"), named, &request, work).await
    }

    async fn create_checkpoint(
        &self,
        request: Request<CreateCheckpointRequest>,
    ) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        if request.released.len() > vm::RELEASED_MAX {
            return Err(invalid("released", &format!("at most {} numbers", vm::RELEASED_MAX)));
        }
        let asked = vm::CheckpointRequest {
            path: request.path.clone(),
            end: request.end,
            stop: request.stop,
            incremental: request.incremental,
            compress: request.compress,
            no_disk_guarantee: request.no_disk_guarantee,
            released: request.released.clone(),
        };
        let work = move |asking: &Asking, tell: asking::Tell<'_>| {
            let path = asked.path.clone();
            let Answer::Checkpoint(answer) = asking.ask(&vm::Request::Checkpoint(asked), tell)?
            else {
                return Err(other_answer());
            };
            let response = CreateCheckpointResponse {
                checkpoint: Some(shape::checkpoint(path, &answer)),
                took: Some(shape::milliseconds(answer.milliseconds)),
                paused: Some(shape::milliseconds(answer.paused_milliseconds)),
            };
            Ok(any("CreateCheckpointResponse", &response))
        };
        self.operate(("CreateCheckpoint", "parts"), named, &request, work).await
    }

    async fn advise(&self, request: Request<AdviseRequest>) -> Result<Response<Operation>> {
        let request = request.into_inner();
        let asked = request.count_for.map(|time| shape::time("count_for", time)).transpose()?;
        let seconds = asked.unwrap_or(COUNT_FOR).as_secs();
        let work = move |asking: &Asking, tell: asking::Tell<'_>| {
            let request = vm::Request::Advise(vm::AdviseRequest { seconds });
            let Answer::Advice(answer) = asking.ask(&request, tell)? else {
                return Err(other_answer());
            };
            Ok(any("AdviseResponse", &AdviseResponse { proposals: answer.proposals }))
        };
        self.operate(("Advise", "windows"), (&request.name, "", ""), &request, work).await
    }

    async fn get_dsm_report(
        &self,
        request: Request<GetDsmReportRequest>,
    ) -> Result<Response<DsmReport>> {
        self.asking.check(&request.into_inner().name, "")?;
        let report = |asking: &Asking| asking.report(&vm::Request::Report(vm::ReportRequest {}));
        self.asking.wait(report).await.map(Response::new)
    }

    async fn get_trace(&self, request: Request<GetTraceRequest>) -> Result<Response<Trace>> {
        let GetTraceRequest { name, page_size } = request.into_inner();
        self.asking.check(&name, "")?;
        let top = usize::try_from(page_size).map_err(|_| invalid("page_size", "it is negative"))?;
        let top = if top == 0 { PAGES } else { top.min(TOP_MAX) };
        let trace = move |asking: &Asking| {
            let request = vm::TraceRequest { top, since: vm::Since::Start };
            match asking.ask(&vm::Request::Trace(request), &mut |_| {})? {
                Answer::Trace(trace) => Ok(shape::trace(trace)),
                _ => Err(other_answer()),
            }
        };
        self.asking.wait(trace).await.map(Response::new)
    }

    async fn tune_dsm(&self, request: Request<TuneDsmRequest>) -> Result<Response<DsmReport>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let hold_us = request.hold.as_ref().map(asking::hold_us).transpose()?;
        let correlation = request.correlation_prefetch;
        let tune = vm::Request::Tune(vm::TuneRequest { hold_us, correlation });
        self.call("TuneDsm", named, &request, move |asking| asking.report(&tune)).await
    }

    async fn forget_device_pages(
        &self,
        request: Request<ForgetDevicePagesRequest>,
    ) -> Result<Response<DsmReport>> {
        let request = request.into_inner();
        let named = (&request.name[..], &request.etag[..], &request.request_id[..]);
        let only = request.device.map(u16::try_from).transpose();
        let only = only.map_err(|_| invalid("device", "there is no such device"))?;
        let forget = vm::Request::ForgetDevicePages(vm::ForgetRequest { only });
        self.call("ForgetDevicePages", named, &request, move |asking| asking.report(&forget)).await
    }
}
