//! `xtask http`: what a lab host runs to ask a guest's web server. Results are JSON, a line each.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use lab::http::{self, Load};
use lab::http_seconds::SecondsLoad;
use lab::http_server::Server;

#[derive(Subcommand)]
pub(crate) enum HttpVerb {
    /// Fetch each object once: status, length, SHA-256, microseconds
    Fetch(FetchOptions),
    /// Ask for one object again and again over some connections, each one request at a time: requests
    /// for each second, latencies
    Load(LoadOptions),
    /// The same load until killed: what came in each second, a line each
    Seconds(SecondsOptions),
    /// Serve the objects of the guest's web server, from memory, until killed
    Serve(ServeOptions),
}

#[derive(Args)]
pub(crate) struct FetchOptions {
    /// Objects
    #[arg(required = true)]
    urls: Vec<String>,
    /// Most seconds for one of them
    #[arg(long, default_value_t = 60.0)]
    limit: f64,
}

#[derive(Args)]
pub(crate) struct LoadOptions {
    /// The object
    url: String,
    /// Connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Seconds in which requests are counted
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before that
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// So many requests in all, in place of a time
    #[arg(long, conflicts_with_all = ["seconds", "warm_up"])]
    requests: Option<u64>,
    /// Most seconds for one request
    #[arg(long, default_value_t = 60.0)]
    limit: f64,
}

#[derive(Args)]
pub(crate) struct SecondsOptions {
    /// The object
    url: String,
    /// Connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Most seconds for one request
    #[arg(long, default_value_t = 60.0)]
    limit: f64,
}

#[derive(Args)]
pub(crate) struct ServeOptions {
    /// Where to listen
    address: SocketAddr,
}

pub(crate) fn run(verb: HttpVerb) -> Result<ExitCode> {
    match verb {
        HttpVerb::Fetch(options) => {
            for url in &options.urls {
                let fetched = http::fetch(url, seconds(options.limit)?)?;
                println!("{}", serde_json::to_string(&fetched)?);
            }
        }
        HttpVerb::Load(options) => {
            let load = Load {
                url: options.url,
                connections: options.connections,
                span: seconds(options.seconds)?,
                warm_up: seconds(options.warm_up)?,
                requests: options.requests,
                limit: seconds(options.limit)?,
            };
            println!("{}", serde_json::to_string(&load.run()?)?);
        }
        HttpVerb::Seconds(options) => {
            let load = SecondsLoad {
                url: options.url,
                connections: options.connections,
                limit: seconds(options.limit)?,
            };
            load.run(|second| {
                println!("{}", serde_json::to_string(second)?);
                Ok(true)
            })?;
        }
        HttpVerb::Serve(options) => {
            let server = Server::listen(options.address)?;
            println!("listening");
            server.run()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(number: f64) -> Result<Duration> {
    ensure!((0.0..=3600.0).contains(&number), "{number} seconds: use 0 to 3600");
    Ok(Duration::from_secs_f64(number))
}
