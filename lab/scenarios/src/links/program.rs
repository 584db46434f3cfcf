//! `tessera-link` on the hosts of a lab: built, copied, serving.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::{Command, Host, Lab, RemoteProcess, Stream};

use crate::workspace;

const PACKAGE: &str = "tessera-link";
/// Port that the server listens on.
pub(crate) const PORT: u16 = 7300;
/// For a server to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(180);
/// For a server to end after its asker has gone.
const END_LIMIT: Duration = Duration::from_secs(20);

/// The program of `TESSERA_LINK`, or the one of this tree, built.
pub(crate) fn build() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("TESSERA_LINK") {
        return Ok(program.into());
    }
    let root = workspace::root()?;
    println!("x: building {PACKAGE}");
    workspace::run_cargo(&root, &["build", "-q", "--locked", "--release", "-p", PACKAGE])
        .context("build what measures")?;
    Ok(workspace::target(&root).join("release").join(PACKAGE))
}

/// Copies it to every host. Gives its path inside, which is the same in all.
pub(crate) fn install(lab: &Lab, built: &Path) -> Result<String> {
    let mut inside = String::new();
    for host in lab.hosts() {
        fs::copy(built, host.job()?.join(PACKAGE))
            .with_context(|| format!("copy {}", built.display()))?;
        inside = host.job_inside()?.join(PACKAGE).to_string_lossy().into_owned();
    }
    Ok(inside)
}

/// Starts a server and waits until it listens.
pub(crate) fn serve(host: &Host<'_>, command: &Command) -> Result<RemoteProcess> {
    let mut server = host.spawn(command)?;
    let until = Instant::now() + LISTEN_LIMIT;
    while Instant::now() < until {
        match server.next_line(Duration::from_secs(1)) {
            Some(line) if line.stream == Stream::Out && line.text.contains("listening") => {
                return Ok(server);
            }
            Some(line) => eprintln!("server: {}", line.text),
            None if server.is_over() => bail!("the server ended"),
            None => {}
        }
    }
    bail!("the server does not listen")
}

/// The server ends by itself when the asker has gone; one that does not is killed.
pub(crate) fn end(mut server: RemoteProcess) {
    if server.wait(END_LIMIT).is_err() {
        drop(server.kill());
    }
}
