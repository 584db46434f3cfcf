//! The service `Cluster`.

use super::shape;
use crate::run::Handle;
use control::v1::cluster_server::Cluster;
use control::v1::{ClusterStatus, GetClusterRequest};
use tonic::{Request, Response, Status};

/// Answers calls about the cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterApi {
    handle: Handle,
    /// By which name it leads.
    name: String,
}

impl ClusterApi {
    pub(crate) fn new(handle: Handle, name: String) -> Self {
        Self { handle, name }
    }
}

#[tonic::async_trait]
impl Cluster for ClusterApi {
    async fn get_cluster(
        &self,
        _: Request<GetClusterRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        // Whoever answers leads.
        let leader = self.name.clone();
        let found = self.handle.look(move |view| shape::cluster(view.machine, leader)).await?;
        Ok(Response::new(found))
    }
}
