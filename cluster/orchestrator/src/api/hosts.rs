//! The service `Hosts`.

use super::names::{self, page_size, page_token};
use super::problem::invalid;
use super::shape;
use crate::decide::{Ask, Refusal};
use crate::run::{Agents, Handle, View};
use control::v1::hosts_server::Hosts;
use control::v1::{
    ClusterHost, CordonHostRequest, DrainHostRequest, GetClusterHostRequest, ListHostsRequest,
    ListHostsResponse, RegisterHostRequest, RemoveHostRequest, RemoveHostResponse,
    UncordonHostRequest,
};
use state::Name;
use tonic::{Request, Response, Status};

type Result<T> = std::result::Result<T, Status>;

/// Answers calls about hosts.
#[derive(Clone, Debug)]
pub(crate) struct HostsApi {
    handle: Handle,
    agents: Agents,
}

impl HostsApi {
    pub(crate) fn new(handle: Handle, agents: Agents) -> Self {
        Self { handle, agents }
    }

    async fn host(&self, name: Name) -> Result<Response<ClusterHost>> {
        let asked = name.clone();
        let found = self.handle.look(move |view| shape::host_of(view.machine, &asked)).await?;
        found.map(Response::new).ok_or_else(|| Refusal::NoHost(name).into())
    }

    async fn cordon(&self, name: &str, cordoned: bool) -> Result<Response<ClusterHost>> {
        let name = names::host("name", name)?;
        self.handle.ask(None, false, Ask::Cordon { name: name.clone(), cordoned }).await?;
        self.host(name).await
    }
}

#[tonic::async_trait]
impl Hosts for HostsApi {
    async fn register_host(
        &self,
        asked: Request<RegisterHostRequest>,
    ) -> Result<Response<ClusterHost>> {
        let asked = asked.into_inner();
        let name = names::host("name", &asked.name)?;
        let usable = self.agents.check(&asked.agent);
        usable.map_err(|error| invalid("agent", &error.to_string()))?;
        let ask = Ask::Register { name: name.clone(), agent: asked.agent };
        self.handle.ask(None, false, ask).await?;
        self.host(name).await
    }

    async fn get_cluster_host(
        &self,
        asked: Request<GetClusterHostRequest>,
    ) -> Result<Response<ClusterHost>> {
        self.host(names::host("name", &asked.into_inner().name)?).await
    }

    async fn list_hosts(
        &self,
        asked: Request<ListHostsRequest>,
    ) -> Result<Response<ListHostsResponse>> {
        let asked = asked.into_inner();
        let (size, after) = (page_size(asked.page_size)?, page_token(&asked.page_token)?);
        let look = move |view: &View<'_>| shape::hosts(view.machine, after.as_ref(), size);
        let (hosts, next_page_token) = self.handle.look(look).await?;
        Ok(Response::new(ListHostsResponse { hosts, next_page_token }))
    }

    async fn cordon_host(
        &self,
        asked: Request<CordonHostRequest>,
    ) -> Result<Response<ClusterHost>> {
        self.cordon(&asked.into_inner().name, true).await
    }

    async fn drain_host(&self, asked: Request<DrainHostRequest>) -> Result<Response<ClusterHost>> {
        let name = names::host("name", &asked.into_inner().name)?;
        self.handle.ask(None, false, Ask::Drain { name: name.clone() }).await?;
        self.host(name).await
    }

    async fn uncordon_host(
        &self,
        asked: Request<UncordonHostRequest>,
    ) -> Result<Response<ClusterHost>> {
        self.cordon(&asked.into_inner().name, false).await
    }

    async fn remove_host(
        &self,
        asked: Request<RemoveHostRequest>,
    ) -> Result<Response<RemoveHostResponse>> {
        let asked = asked.into_inner();
        let name = names::host("name", &asked.name)?;
        self.handle.ask(None, false, Ask::RemoveHost { name, gone: asked.gone }).await?;
        Ok(Response::new(RemoveHostResponse {}))
    }
}
