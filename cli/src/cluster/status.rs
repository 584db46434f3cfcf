//! `tessera cluster`: a cluster as a whole.

use super::connect::Where;
use super::output::{self, Format};
use anyhow::Result;
use clap::{Args, Subcommand};
use control::v1::GetClusterRequest;
use control::v1::cluster_client::ClusterClient;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print who leads, how many hosts and VMs there are, and what is free.
    Status(StatusArguments),
}

#[derive(Args, Debug)]
struct StatusArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

/// Asks, and prints.
pub(crate) fn run(Arguments { verb }: &Arguments) -> Result<()> {
    let Verb::Status(StatusArguments { place, format }) = verb;
    let status = place.connect()?.ask(&GetClusterRequest {}, |channel, request| async move {
        ClusterClient::new(channel).get_cluster(request).await
    })?;
    format.print(&output::status(&status))
}
