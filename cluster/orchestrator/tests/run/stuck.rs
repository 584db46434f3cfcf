//! A host whose agent says how it is and does nothing else: the others do not wait for it.

use crate::orchestrator::{Folder, id, vm};
use crate::{LONG, agent, on_memory};
use control::v1::cluster_vm::State;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::MemoryStore;
use tokio::time::timeout;

/// More than all of the places that there were for calls to all hosts.
const VMS: u32 = 300;

#[tokio::test]
async fn host_that_is_stuck_takes_no_place_of_the_others() {
    let folder = Folder::new();
    let running = on_memory(&folder, "it", LONG, &MemoryStore::default());
    let mut client = running.client().await;
    client.until_it_leads().await;
    let (stuck, at) = agent::serve(&folder.0, "a", 310);
    stuck.is_stuck.store(true, Ordering::SeqCst);
    client.register("a", &at).await;
    for number in 0..VMS {
        let mut small = vm(&format!("vm-{number}"), 1);
        small.spec.as_mut().unwrap().memory_bytes = 32 << 20;
        client.create(small, &id(number)).await.unwrap();
    }
    // The best fit is on another host from now on.
    let (_door, at) = agent::serve(&folder.0, "b", 4);
    client.register("b", &at).await;
    let created = client.create(vm("web", 4), "").await.unwrap();
    timeout(Duration::from_secs(10), client.wait(&created)).await.expect("it starts");
    let web = client.get("web").await.unwrap();
    assert_eq!((web.state(), &web.placement[0].host[..]), (State::Running, "hosts/b"));
    assert_eq!(client.get("vm-7").await.unwrap().state(), State::Starting);
    // It is well again: all of them start.
    stuck.is_stuck.store(false, Ordering::SeqCst);
    client.until("vm-299", State::Running).await;
    running.end();
}
