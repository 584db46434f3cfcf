//! The service `Vms`.

use super::names::{self, page_size, page_token, request};
use super::problem::invalid;
use super::watch::{Watch, Watchers};
use super::{operations, shape, spec};
use crate::decide::{Answer, Ask, Refusal};
use crate::run::{Handle, View};
use control::longrunning::Operation;
use control::v1::vms_server::Vms;
use control::v1::{
    ClusterVm, CreateVmRequest, DeleteVmRequest, ExplainVmRequest, GetClusterVmRequest,
    ListVmsRequest, ListVmsResponse, PlanVmRequest, UpdateVmRequest, VmExplanation, VmPlan,
    WatchVmsRequest,
};
use rustix::rand::{GetRandomFlags, getrandom};
use state::{Name, Secret, Uid};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Between two bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(10);
const BOOKMARKS_MIN: Duration = Duration::from_secs(1);

type Result<T> = std::result::Result<T, Status>;

/// Answers calls about VMs.
#[derive(Clone, Debug)]
pub(crate) struct VmsApi {
    handle: Handle,
    watchers: Watchers,
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    // The kernel gives up to 256 bytes at once, once it is seeded.
    match got {
        Ok(got) if got == BYTES => Ok(bytes),
        Ok(_) => Err(Status::internal("the kernel gives too few random bytes")),
        Err(error) => Err(Status::internal(format!("the kernel gives no random bytes: {error}"))),
    }
}

fn secret(vm: &Uid) -> Result<Secret> {
    let digits: String = random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Secret { vm: vm.clone(), digits })
}

/// An etag, if one was given.
fn etag(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A name, and what is wanted.
fn wanted(vm: Option<&ClusterVm>) -> Result<(Name, state::VmDesired)> {
    let vm = vm.ok_or_else(|| invalid("vm", "it is missing"))?;
    Ok((names::vm("vm.name", &vm.name)?, spec::desired(vm.spec.as_ref())?))
}

impl VmsApi {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { watchers: Watchers::new(handle.clone()), handle }
    }

    async fn vm(&self, name: Name) -> Result<ClusterVm> {
        let asked = name.clone();
        let found = self.handle.look(move |view| shape::vm_of(view.machine, &asked)).await?;
        found.ok_or_else(|| Refusal::NoVm(name).into())
    }

    /// The operation that an answer names.
    async fn operation(&self, answer: Answer) -> Result<Operation> {
        let Answer::Goal(goal) = answer else { return Ok(operations::valid()) };
        let found = self.handle.look(move |view| operations::find(view.machine, &goal)).await?;
        found.ok_or_else(|| Status::internal("a goal has no operation: this is a bug"))
    }
}

#[tonic::async_trait]
impl Vms for VmsApi {
    type WatchVmsStream = Watch;

    async fn create_vm(&self, asked: Request<CreateVmRequest>) -> Result<Response<Operation>> {
        let mut asked = asked.into_inner();
        let id = std::mem::take(&mut asked.request_id);
        let request = request("CreateVm", &id, &asked)?;
        let (name, desired) = wanted(asked.vm.as_ref())?;
        let uid = Uid::new(u128::from_be_bytes(random()?));
        let secret = secret(&uid)?;
        let plan = etag(asked.plan_token);
        let ask = Ask::Create { name, uid, secret, desired: Box::new(desired), plan };
        let answer = self.handle.ask(request, asked.validate_only, ask).await?;
        self.operation(answer).await.map(Response::new)
    }

    async fn get_cluster_vm(
        &self,
        asked: Request<GetClusterVmRequest>,
    ) -> Result<Response<ClusterVm>> {
        let name = names::vm("name", &asked.into_inner().name)?;
        self.vm(name).await.map(Response::new)
    }

    async fn list_vms(&self, asked: Request<ListVmsRequest>) -> Result<Response<ListVmsResponse>> {
        let asked = asked.into_inner();
        let (size, after) = (page_size(asked.page_size)?, page_token(&asked.page_token)?);
        let look = move |view: &View<'_>| shape::vms(view.machine, after.as_ref(), size);
        let (vms, next_page_token) = self.handle.look(look).await?;
        Ok(Response::new(ListVmsResponse { vms, next_page_token }))
    }

    async fn update_vm(&self, asked: Request<UpdateVmRequest>) -> Result<Response<ClusterVm>> {
        let mut asked = asked.into_inner();
        let id = std::mem::take(&mut asked.request_id);
        let request = request("UpdateVm", &id, &asked)?;
        let name = names::vm("name", &asked.name)?;
        if asked.run == 0 {
            return Err(invalid("run", "it is missing"));
        }
        let (run, etag) = (spec::run("run", asked.run)?, etag(asked.etag));
        let ask = Ask::Update { name: name.clone(), run, etag };
        self.handle.ask(request, asked.validate_only, ask).await?;
        self.vm(name).await.map(Response::new)
    }

    async fn delete_vm(&self, asked: Request<DeleteVmRequest>) -> Result<Response<Operation>> {
        let mut asked = asked.into_inner();
        let id = std::mem::take(&mut asked.request_id);
        let request = request("DeleteVm", &id, &asked)?;
        let ask = Ask::Delete { name: names::vm("name", &asked.name)?, etag: etag(asked.etag) };
        let answer = self.handle.ask(request, asked.validate_only, ask).await?;
        self.operation(answer).await.map(Response::new)
    }

    async fn watch_vms(&self, asked: Request<WatchVmsRequest>) -> Result<Response<Watch>> {
        let period = asked.into_inner().bookmark_interval.map(Duration::try_from).transpose();
        let period = period.map_err(|_| invalid("bookmark_interval", "this is no time"))?;
        let period = period.unwrap_or(BOOKMARKS).max(BOOKMARKS_MIN);
        self.watchers.watch(period).await.map(Response::new)
    }

    async fn plan_vm(&self, asked: Request<PlanVmRequest>) -> Result<Response<VmPlan>> {
        let (name, desired) = wanted(asked.into_inner().vm.as_ref())?;
        let look = move |view: &View<'_>| view.machine.plan(&name, &desired);
        let plan = self.handle.look(look).await?;
        Ok(Response::new(shape::plan(plan)))
    }

    async fn explain_vm(
        &self,
        asked: Request<ExplainVmRequest>,
    ) -> Result<Response<VmExplanation>> {
        let name = names::vm("name", &asked.into_inner().name)?;
        let asked = name.clone();
        let look = move |view: &View<'_>| shape::explanation(view.machine, &asked);
        let found = self.handle.look(look).await?;
        found.map(Response::new).ok_or_else(|| Refusal::NoVm(name).into())
    }
}
