//! etcd as a process of the test: on free ports, in a folder that goes, ended by its number whatever happens.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond anything a healthy run needs; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that goes when the test ends, in memory if there is a file system there.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn new(what: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tessera-store-{what}-{}-{number}", std::process::id());
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of something in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, if it is there and runs.
///
/// # Errors
/// Why it does not.
pub fn etcd_program() -> Result<(), String> {
    let tried = Command::new("etcd").arg("--version").stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("etcd --version ended with {}", output.status)),
        Err(error) => Err(format!("etcd (package etcd-server): {error}")),
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// One member of a cluster of one.
#[derive(Debug)]
pub struct EtcdProcess {
    child: Option<Child>,
    folder: Folder,
    client: u16,
    peer: u16,
    /// More of its options.
    options: Vec<String>,
    scheme: &'static str,
}

impl EtcdProcess {
    /// In a folder of its own, without encryption.
    #[must_use]
    pub fn start() -> Self {
        Self::with(Folder::new("etcd"), "http", Vec::new())
    }

    /// One with more options, whose clients use this scheme.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn with(folder: Folder, scheme: &'static str, options: Vec<String>) -> Self {
        let (client, peer) = (0, 0);
        let mut process = Self { child: None, folder, client, peer, options, scheme };
        // Somebody else may have taken a port in the meantime.
        for _ in 0..10 {
            (process.client, process.peer) = (free_port(), free_port());
            process.run();
            if process.ready() {
                return process;
            }
        }
        panic!("etcd does not start");
    }

    /// Where it listens to clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.client)
    }

    fn run(&mut self) {
        let client = self.endpoint();
        let peer = format!("http://127.0.0.1:{}", self.peer);
        // It ends with this thread, which is that of the test, even if the test is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "etcd", "--name", "one", "--data-dir"])
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}"), "--logger", "zap"])
            .args(["--log-level", "error"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Whether it listens; not if it has ended.
    fn ready(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                return false;
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.client)).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("etcd does not listen");
    }

    /// Deletes a key, given in base64, in the way of people with curl.
    ///
    /// # Panics
    /// It is not deleted.
    pub fn delete(&self, key: &str) {
        let body = format!("{{\"key\": \"{key}\"}}");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.client)).unwrap();
        write!(
            stream,
            "POST /v3/kv/deleterange HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"deleted\":\"1\""), "{answer}");
    }

    /// Ends it at once, as a crash does.
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, with the data that it had.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.run();
        assert!(self.ready(), "etcd does not start again");
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
