//! What all servers of the API do alike: bounds of a connection, reflection, and their end.
//!
//! ```text
//!   serving --asked to stop, or whoever asks is gone--> no new calls; those that go on have STOP_LIMIT --> left
//! ```

use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Error;
use tonic_health::pb::FILE_DESCRIPTOR_SET;
use tonic_reflection::server::Builder;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// Calls at a time on one connection, watches too.
pub const STREAMS_MAX: u32 = 256;
/// A client that is silent is asked after so long whether it is there.
pub const PING_EVERY: Duration = Duration::from_secs(20);
/// One that does not answer for so long is gone.
pub const PING_LIMIT: Duration = Duration::from_secs(20);
/// For calls that go on when a server ends.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Tells clients what may be called.
#[must_use]
pub fn reflection() -> Option<ServerReflectionServer<impl ServerReflection>> {
    let service = Builder::configure()
        .register_encoded_file_descriptor_set(control::DESCRIPTORS)
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1();
    service
        .inspect_err(|error| tracing::error!(%error, "there is no reflection: this is a bug"))
        .ok()
}

/// Waits until a server is to stop. One whose owner is gone is to stop as well.
pub async fn asked_to_stop(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await.map(|_| ());
}

/// Serves until it is to stop, and leaves calls that go on for too long after that.
pub async fn serve_until(
    what: &str,
    serving: impl Future<Output = Result<(), Error>>,
    stopped: watch::Receiver<bool>,
) {
    tokio::pin!(serving);
    tokio::select! {
        result = &mut serving => {
            if let Err(error) = result {
                tracing::warn!(%error, "{what} is not served any more");
            }
        }
        () = async {
            asked_to_stop(stopped).await;
            sleep(STOP_LIMIT).await;
        } => tracing::debug!("calls of {what} that go on are left"),
    }
}
