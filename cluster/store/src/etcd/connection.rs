//! A connection to one member of the cluster at a time.
//!
//! ```text
//!   none ──some endpoint takes it──> connected ──a call fails──> none, the next endpoint is first
//!    ^└──none does: wait, longer each time, by chance a little less──┘
//! ```
//! A connection is made before a commit is sent: what was refused while connecting was surely not committed.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::transport::{Channel, Endpoint};

const BACK_OFF: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(2);

/// A channel, and which it is.
#[derive(Clone, Debug)]
pub(super) struct Connected {
    pub(super) channel: Channel,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    endpoints: Vec<Endpoint>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connected: Option<Connected>,
    /// The endpoint that is tried first.
    first: usize,
    /// How many channels there have been.
    count: u64,
}

impl Connection {
    pub(super) fn new(endpoints: Vec<Endpoint>) -> Self {
        Self { endpoints, state: Mutex::default() }
    }

    /// A channel to any member, or why there is none by then.
    pub(super) async fn get(&self, deadline: Instant) -> Result<Connected, String> {
        let late = |_| "no connection in time".to_owned();
        // Others wait meanwhile: one task connects for all.
        let mut state = timeout_at(deadline, self.state.lock()).await.map_err(late)?;
        if let Some(connected) = &state.connected {
            return Ok(connected.clone());
        }
        let mut back_off = BACK_OFF;
        let mut why = "no connection in time".to_owned();
        loop {
            for step in 0..self.endpoints.len() {
                let at = (state.first + step) % self.endpoints.len();
                let endpoint = &self.endpoints[at];
                match timeout_at(deadline, endpoint.connect()).await {
                    Ok(Ok(channel)) => {
                        state.first = at;
                        state.count += 1;
                        let connected = Connected { channel, number: state.count };
                        state.connected = Some(connected.clone());
                        return Ok(connected);
                    }
                    Ok(Err(error)) => why = format!("{}: {}", endpoint.uri(), causes(&error)),
                    Err(_) => return Err(why),
                }
            }
            let again = Instant::now() + back_off.mul_f64(fastrand::f64().mul_add(0.5, 0.5));
            if again >= deadline {
                return Err(why);
            }
            sleep_until(again).await;
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    /// A call over this channel failed in a way that another member might not.
    pub(super) async fn failed(&self, connected: &Connected) {
        let mut state = self.state.lock().await;
        if state.connected.as_ref().is_some_and(|now| now.number == connected.number) {
            state.connected = None;
            state.first = (state.first + 1) % self.endpoints.len();
        }
    }
}

/// An error with all that it comes from: tonic says "transport error" alone.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
