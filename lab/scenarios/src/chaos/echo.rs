//! `xtask echo`: what a lab host runs to load a guest's network and judge every byte that comes back.
//!
//! ```text
//!   each port: record n out ─> the same bytes back ─> record n + 1 ...      (after a while without: n + 1 as well)
//! ```

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use guest_tests::records::{ECHO_PORT, RECORD_BYTES, Writer};

/// The next datagram is sent after so long at the latest. One that comes back later counts as late, not as lost: an
/// emulated guest whose two vCPUs fight for a page may take seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two lines about a port.
const TELL: Duration = Duration::from_millis(500);

/// What `xtask echo` takes.
#[derive(Args, Debug)]
pub struct EchoOptions {
    /// The guest
    address: IpAddr,
    /// Ports, one for each of the guest's CPUs
    #[arg(long, default_value_t = 2)]
    ports: u16,
    /// Life of the guest
    #[arg(long)]
    run: u64,
}

/// Goes on until it is killed, or until wrong bytes have come.
///
/// # Errors
/// No socket can be opened.
pub fn run(options: &EchoOptions) -> Result<ExitCode> {
    let (wrong, seen) = channel();
    for number in 0..options.ports {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).context("open a socket")?;
        socket.connect((options.address, ECHO_PORT + number)).context("name the guest's port")?;
        let ask = Ask { socket, writer: Writer { run: options.run, number: number.into() } };
        let wrong = wrong.clone();
        thread::spawn(move || ask.go_on(&wrong));
    }
    drop(wrong);
    println!("ECHO wrong {}", seen.recv().context("no thread asks")?);
    Ok(ExitCode::FAILURE)
}

/// What came back while one record was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Came {
    /// The record itself.
    in_time: bool,
    /// Earlier ones.
    late: u64,
}

/// One port.
struct Ask {
    socket: UdpSocket,
    writer: Writer,
}

impl Ask {
    fn go_on(&self, wrong: &Sender<String>) {
        let (mut returned, mut late, mut told) = (0_u64, 0_u64, Instant::now());
        let (mut last, mut longest) = (None::<Instant>, Duration::ZERO);
        for number in 0_u64.. {
            let came = match self.once(number) {
                Ok(came) => came,
                // Nobody listens for that any more when another port was wrong before.
                Err(what) => return drop(wrong.send(what)),
            };
            longest = longest.max(last.map_or(Duration::ZERO, |last| last.elapsed()));
            late += came.late;
            returned += came.late + u64::from(came.in_time);
            if came != Came::default() {
                last = Some(Instant::now());
            }
            if told.elapsed() >= TELL {
                let longest = longest.as_millis();
                println!("ECHO {} {returned} {late} {longest}", self.writer.number);
                told = Instant::now();
            }
        }
    }

    /// What came back until the record did, or its time was over; `Err` says what came that was never sent.
    fn once(&self, number: u64) -> Result<Came, String> {
        let mut came = Came::default();
        // A guest that is not there, or no more, is no failure of the network.
        if self.socket.send(&self.writer.record(number)).is_err() {
            thread::sleep(PATIENCE);
            return Ok(came);
        }
        let until = Instant::now() + PATIENCE;
        let mut bytes = vec![0; 2 * RECORD_BYTES];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return Ok(came);
            }
            match self.socket.recv(&mut bytes) {
                Ok(length) => match self.writer.number_of(&bytes[..length]) {
                    Some(other) if other == number => return Ok(Came { in_time: true, ..came }),
                    Some(other) if other < number => came.late += 1,
                    _ => return Err(self.wrong(number, &bytes[..length])),
                },
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    thread::sleep(PATIENCE);
                    return Ok(came);
                }
                Err(_) => return Ok(came),
            }
        }
    }

    fn wrong(&self, number: u64, bytes: &[u8]) -> String {
        let sent = self.writer.record(number);
        let differ = sent.iter().zip(bytes).position(|(sent, came)| sent != came);
        format!(
            "port {}, record {number}: {} bytes came, the first that differs is at {differ:?}",
            self.writer.number,
            bytes.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo that changes what it is told to.
    fn ask(change: impl Fn(&mut Vec<u8>) + Send + 'static) -> Result<Came, String> {
        let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(echo.local_addr().unwrap()).unwrap();
        let serving = thread::spawn(move || {
            let mut bytes = vec![0; 2 * RECORD_BYTES];
            let (length, from) = echo.recv_from(&mut bytes).unwrap();
            bytes.truncate(length);
            change(&mut bytes);
            echo.send_to(&bytes, from).unwrap();
        });
        let result = Ask { socket, writer: Writer { run: 3, number: 1 } }.once(7);
        serving.join().unwrap();
        result
    }

    #[test]
    fn only_what_was_sent_is_right() {
        assert_eq!(ask(|_| {}), Ok(Came { in_time: true, late: 0 }));
        let wrong = ask(|bytes| bytes[4095] ^= 1).unwrap_err();
        assert!(
            wrong.contains("record 7: 4096 bytes came, the first that differs is at Some(4095)")
        );
        assert!(ask(|bytes| bytes.truncate(100)).is_err());
        let newer = |bytes: &mut Vec<u8>| *bytes = Writer { run: 3, number: 1 }.record(8);
        assert!(ask(newer).is_err());
        let late = |bytes: &mut Vec<u8>| *bytes = Writer { run: 3, number: 1 }.record(6);
        assert_eq!(ask(late), Ok(Came { in_time: false, late: 1 }));
        let older_life = |bytes: &mut Vec<u8>| *bytes = Writer { run: 2, number: 1 }.record(7);
        assert!(ask(older_life).is_err());
    }
}
