//! How the one task that owns the machine is asked.

use super::leader::{Command, View};
use crate::decide::{Answer, Ask, Refusal, Request};
use state::Term;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// What waits for the leader.
const COMMANDS_MAX: usize = 256;
/// Nobody waits longer for a place among them.
const PLACE_LIMIT: Duration = Duration::from_secs(5);

/// Whether this orchestrator leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It does not.
    Follows {
        /// Who does, as far as is known.
        leader: Option<String>,
    },
    /// It does.
    Leads {
        /// Since which term.
        term: Term,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AskError {
    /// Nothing is done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing is done.
    #[error("this orchestrator does not lead{}", .leader.as_ref().map_or_else(String::new, |it| format!(": {it} does")))]
    NotLeader {
        /// Who does, as far as is known.
        leader: Option<String>,
    },
    /// Nothing is done.
    #[error("too many calls wait for the leader")]
    Busy,
    /// It may have been done.
    #[error(
        "this orchestrator has stopped to lead: it may have been done, so ask again with the same request_id"
    )]
    Lost,
}

/// Asks whoever leads here. Clones ask the same.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    role: watch::Receiver<Role>,
}

/// The other end.
#[derive(Debug)]
pub struct Inbox {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) role: watch::Sender<Role>,
}

/// Both ends.
#[must_use]
pub fn handle() -> (Handle, Inbox) {
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    let (teller, role) = watch::channel(Role::Follows { leader: None });
    (Handle { commands: sender, role }, Inbox { commands, role: teller })
}

impl Handle {
    /// Whether it leads.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// The same, and each change of it.
    #[must_use]
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    async fn send(&self, command: Command) -> Result<(), AskError> {
        if let Role::Follows { leader } = self.role() {
            return Err(AskError::NotLeader { leader });
        }
        let place = timeout(PLACE_LIMIT, self.commands.reserve()).await;
        let place = place.map_err(|_| AskError::Busy)?;
        place.map_err(|_| AskError::NotLeader { leader: None })?.send(command);
        Ok(())
    }

    /// Has something done, or checked.
    ///
    /// # Errors
    /// It is refused, or nobody here leads.
    pub async fn ask(
        &self,
        request: Option<Request>,
        validate_only: bool,
        ask: Ask,
    ) -> Result<Answer, AskError> {
        let (wait, answer) = oneshot::channel();
        self.send(Command::Ask { request, validate_only, ask: Box::new(ask), wait }).await?;
        Ok(answer.await.map_err(|_| AskError::Lost)??)
    }

    /// Looks at what the leader knows. What was answered before is seen.
    ///
    /// # Errors
    /// Nobody here leads.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, AskError> {
        let (wait, answer) = oneshot::channel();
        // Whoever looks may be gone.
        let look = move |view: &View<'_>| drop(wait.send(look(view)));
        self.send(Command::Look(Box::new(look))).await?;
        answer.await.map_err(|_| self.not_leading())
    }

    /// Nobody here leads any more.
    #[must_use]
    pub fn not_leading(&self) -> AskError {
        match self.role() {
            Role::Follows { leader } => AskError::NotLeader { leader },
            Role::Leads { .. } => AskError::NotLeader { leader: None },
        }
    }
}
