//! `tessera op`: what goes on in a cluster.

use super::connect::{Cluster, Patience, Where};
use super::output::{self, Format};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use control::longrunning::operation::Result as Outcome;
use control::longrunning::operations_client::OperationsClient;
use control::longrunning::{GetOperationRequest, ListOperationsRequest, Operation};
use std::slice::from_ref;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print what is being done to VMs, and what was; the newest first.
    List(ListArguments),
    /// Print an operation.
    Get(OperationArguments),
    /// Wait for an operation. Exit status: 0 if it is done, 2 if it has failed or goes on.
    Wait(WaitArguments),
}

#[derive(Args, Debug)]
struct ListArguments {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct OperationArguments {
    /// Name of the operation
    name: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    format: Format,
}

#[derive(Args, Debug)]
struct WaitArguments {
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    operation: OperationArguments,
}

/// Asks, and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.verb {
        Verb::List(ListArguments { place, format }) => print(*format, &list(&place.connect()?)?),
        Verb::Get(OperationArguments { name, place, format }) => {
            let request = GetOperationRequest { name: full(name) };
            let operation = place.connect()?.ask(&request, |channel, request| async move {
                OperationsClient::new(channel).get_operation(request).await
            })?;
            print(*format, &[operation])
        }
        Verb::Wait(WaitArguments { patience, operation }) => {
            let OperationArguments { name, place, format } = operation;
            let name = full(name);
            let done = place.connect()?.wait(&name, *patience, |_| {})?;
            let done = done.context("it goes on")?;
            print(*format, from_ref(&done))?;
            match done.result {
                Some(Outcome::Error(error)) => bail!("it has failed: {}", error.message),
                _ => Ok(()),
            }
        }
    }
}

/// Both forms are taken: as `op list` prints it, and as the API names it.
fn full(name: &str) -> String {
    format!("operations/{}", name.trim_start_matches("operations/"))
}

fn print(format: Format, operations: &[Operation]) -> Result<()> {
    let entries = operations.iter().map(output::operation).collect();
    format.print(&output::table(&output::OPERATION, entries))
}

fn list(cluster: &Cluster) -> Result<Vec<Operation>> {
    Cluster::all(|page_token| {
        let request = ListOperationsRequest { page_token, ..ListOperationsRequest::default() };
        let page = cluster.ask(&request, |channel, request| async move {
            OperationsClient::new(channel).list_operations(request).await
        })?;
        Ok((page.operations, page.next_page_token))
    })
}
