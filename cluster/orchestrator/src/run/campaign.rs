//! An orchestrator's life: it waits until it leads, leads, and waits again.
//!
//! ```text
//!   follows ──the store lets it──> leads ──lost, deposed, something fails──> resigns ──a moment──> follows
//!                                    └──told to end──> resigns ──> over <── the store has ended for good
//! ```
//! What comes while it follows is dropped unanswered: its [`Handle`](super::Handle) says who leads.

use super::agents::Agents;
use super::handle::{Inbox, Role};
use super::leader::{Ended, Pace, lead};
use crate::decide::Settings;
use state::Term;
use std::error::Error;
use std::time::Duration;
use store::{Candidate, Leadership, Store, StoreError};
use tokio::sync::watch;
use tokio::time::sleep;

/// Between two looks at who leads.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a term that has ended; half of it is chance, so that two do not meet again and again.
const PAUSE_MS: u64 = 1000;

/// What an orchestrator is, beside its store.
#[derive(Clone, Debug)]
pub struct Standing {
    /// By which name it leads, and for how long at a time.
    pub candidate: Candidate,
    /// Of the machine.
    pub settings: Settings,
    /// How often it looks around.
    pub pace: Pace,
    /// How it reaches hosts.
    pub agents: Agents,
}

/// Leads whenever the store lets it, until it is told to end or the store has ended.
pub async fn orchestrate<S: Store>(
    store: S,
    standing: Standing,
    mut inbox: Inbox,
    stopped: watch::Receiver<bool>,
) {
    loop {
        let won = tokio::select! {
            () = vm_service::asked_to_stop(stopped.clone()) => return,
            won = campaign(&store, &standing.candidate, &mut inbox) => won,
        };
        let leadership = match won {
            Ok(Some(leadership)) => leadership,
            Ok(None) => return,
            // Whoever has started this process starts another one, which opens the store anew and reads it from the disk.
            Err(error @ StoreError::Ended(_)) => {
                tracing::error!(%error, "it cannot lead any more: it ends");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "it cannot try to lead");
                pause().await;
                continue;
            }
        };
        let term = leadership.term();
        tracing::info!(%term, "this orchestrator leads");
        inbox.role.send_replace(Role::Leads { term: Term(term.0) });
        let what = (standing.settings.clone(), standing.pace);
        let commands = &mut inbox.commands;
        let ended =
            lead(&store, &leadership, what, &standing.agents, commands, stopped.clone()).await;
        inbox.role.send_replace(Role::Follows { leader: None });
        match &ended {
            Ok(Ended::Closed) => tracing::info!(%term, "it leads no more: it ends"),
            Ok(Ended::Lost(lost)) => tracing::warn!(%term, %lost, "it leads no more"),
            Ok(Ended::Deposed) => tracing::warn!(%term, "it leads no more: another one does"),
            Err(error) => tracing::error!(%term, error = in_full(error), "it leads no more"),
        }
        if let Err(error) = store.resign(leadership).await {
            tracing::warn!(%term, %error, "its lease goes on until it is over");
        }
        if matches!(ended, Ok(Ended::Closed)) {
            return;
        }
        pause().await;
    }
}

/// None if nobody asks any more.
async fn campaign<S: Store>(
    store: &S,
    candidate: &Candidate,
    inbox: &mut Inbox,
) -> Result<Option<Leadership>, StoreError> {
    let Inbox { commands, role } = inbox;
    let campaign = store.campaign(candidate);
    let telling = tell_who_leads(store, role);
    tokio::pin!(campaign, telling);
    loop {
        tokio::select! {
            won = &mut campaign => return won.map(Some),
            () = &mut telling => {}
            command = commands.recv() => match command {
                Some(command) => drop(command),
                None => return Ok(None),
            },
        }
    }
}

async fn tell_who_leads<S: Store>(store: &S, role: &watch::Sender<Role>) {
    loop {
        match store.leader().await {
            Ok(leader) => {
                let leader = leader.map(|leader| leader.name);
                role.send_replace(Role::Follows { leader });
            }
            Err(error) => tracing::debug!(%error, "the store does not say who leads"),
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn pause() {
    sleep(Duration::from_millis(PAUSE_MS / 2 + fastrand::u64(0..PAUSE_MS / 2))).await;
}

/// An error with all of its causes.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
