//! Metrics of an agent over HTTP. Slices are shells, which do not answer.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../../metrics/tests/http/exposition.rs"]
mod exposition;
#[expect(dead_code, reason = "each test program uses a part of it")]
mod support;

use agent_service::{AgentError, Options, Server};
use control::v1::host_slice::State;
use exposition::{Exposition, read};
use support::{Host, companion, fence, until};
use tokio::task::spawn_blocking;

async fn told(server: &Server) -> Exposition {
    let url = format!("http://{}/metrics", server.metrics().unwrap());
    let get = move || ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    let text = spawn_blocking(get).await.unwrap();
    read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

#[tokio::test]
async fn slices_come_and_go_with_their_rows() {
    let host = Host::new();
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::begin(Options { metrics, ..host.options() }).unwrap();

    let before = told(&server).await;
    assert_eq!(before.value("tessera_host_cores", &[("state", "free")]), Some(4.0));
    assert!(before.rows("tessera_slice_up").is_empty());

    let mut agent = host.agent().await;
    agent.ensure_slice(companion(1)).await.unwrap();
    until(&mut agent, 1, State::Running).await;
    // A page of before serves a second more.
    let running = loop {
        let told = told(&server).await;
        if !told.rows("tessera_slice_up").is_empty() {
            break told;
        }
    };
    let labels = [("vm", "0000000000000000000000000000004d"), ("slice", "1")];
    assert_eq!(running.value("tessera_slice_up", &labels), Some(0.0), "a shell does not answer");
    let state = [labels[0], labels[1], ("state", "running")];
    assert_eq!(running.value("tessera_slice_state", &state), Some(1.0));
    assert_eq!(running.value("tessera_host_cores", &[("state", "free")]), Some(3.0));
    fence(&mut agent, 2).await;
}

#[test]
fn address_that_cannot_be_used_is_refused() {
    let host = Host::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = Some(taken.local_addr().unwrap());

    let refused = Server::begin(Options { metrics, ..host.options() }).unwrap_err();
    assert!(matches!(refused, AgentError::Metrics(_)), "{refused}");
    assert!(refused.to_string().contains(&taken.local_addr().unwrap().to_string()), "{refused}");
}
