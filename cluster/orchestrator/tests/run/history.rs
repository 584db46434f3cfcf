//! A leader has its store forget what was.

use crate::agent;
use crate::moody::Moody;
use crate::orchestrator::{Folder, settings};
use ::orchestrator::decide::Ask;
use ::orchestrator::run::{Agents, Command, Pace, lead};
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Candidate, Key, Prefix, Revision, Store, WatchError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn leader_has_its_store_forget_what_was() {
    let folder = Folder::new();
    let (_door, agent) = agent::serve(&folder.0, "a", 4);
    let store = Moody::default();
    let (lease, clock_error) = (Duration::from_secs(60), Duration::from_millis(10));
    let candidate = Candidate { name: "it".into(), lease, clock_error };
    let leadership = store.campaign(&candidate).await.unwrap();
    let (commands, mut inbox) = mpsc::channel(16);
    let (_stop, stopped) = watch::channel(false);
    let leading = tokio::spawn({
        let store = store.clone();
        async move {
            let what = (settings(), Pace(Duration::from_millis(1)));
            lead(&store, &leadership, what, &Agents::new(None), &mut inbox, stopped).await
        }
    });
    let (wait, answer) = oneshot::channel();
    let ask = Box::new(Ask::Register { name: crate::support::name("a"), agent });
    let command = Command::Ask { request: None, validate_only: false, ask, wait };
    commands.send(command).await.unwrap();
    answer.await.unwrap().unwrap();

    // It could not the first time, and the leader leads on. What was there at the beginning is gone some time later.
    let prefix = Prefix::below(&Key::new("hosts").unwrap());
    let until_it_is_gone = async {
        while store.watch(&prefix, Revision::ZERO).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), until_it_is_gone).await.expect("it is forgotten");
    let error = store.watch(&prefix, Revision::ZERO).await.err();
    assert!(matches!(error, Some(WatchError::Compacted { .. })), "{error:?}");
    assert!(store.compactions.load(Ordering::SeqCst) >= 2);
    let newest = store.get(&Key::new("hosts/a").unwrap()).await.unwrap();
    assert!(newest.entry.is_some(), "what is there is there still");
    assert!(store.watch(&prefix, newest.revision).await.is_ok());
    assert!(!leading.is_finished());
    leading.abort();
}
