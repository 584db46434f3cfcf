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

/// A datagram that has not come back after so long is lost.
const LOST: Duration = Duration::from_millis(500);
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

/// One port.
struct Ask {
    socket: UdpSocket,
    writer: Writer,
}

impl Ask {
    fn go_on(&self, wrong: &Sender<String>) {
        let (mut returned, mut told) = (0_u64, Instant::now());
        for number in 0_u64.. {
            match self.once(number) {
                Ok(came) => returned += u64::from(came),
                // Nobody listens for that any more when another port was wrong before.
                Err(what) => return drop(wrong.send(what)),
            }
            if told.elapsed() >= TELL {
                println!("ECHO {} {returned}", self.writer.number);
                told = Instant::now();
            }
        }
    }

    /// Whether the record came back; `Err` says what came that was never sent.
    fn once(&self, number: u64) -> Result<bool, String> {
        // A guest that is not there, or no more, is no failure of the network.
        if self.socket.send(&self.writer.record(number)).is_err() {
            thread::sleep(LOST);
            return Ok(false);
        }
        let until = Instant::now() + LOST;
        let mut bytes = vec![0; 2 * RECORD_BYTES];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return Ok(false);
            }
            match self.socket.recv(&mut bytes) {
                Ok(length) => match self.writer.number_of(&bytes[..length]) {
                    Some(came) if came == number => return Ok(true),
                    // It was given up.
                    Some(came) if came < number => {}
                    _ => return Err(self.wrong(number, &bytes[..length])),
                },
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    thread::sleep(LOST);
                    return Ok(false);
                }
                Err(_) => return Ok(false),
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
    fn ask(change: impl Fn(&mut Vec<u8>) + Send + 'static) -> Result<bool, String> {
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
        assert_eq!(ask(|_| {}), Ok(true));
        let wrong = ask(|bytes| bytes[4095] ^= 1).unwrap_err();
        assert!(
            wrong.contains("record 7: 4096 bytes came, the first that differs is at Some(4095)")
        );
        assert!(ask(|bytes| bytes.truncate(100)).is_err());
        let newer = |bytes: &mut Vec<u8>| *bytes = Writer { run: 3, number: 1 }.record(8);
        assert!(ask(newer).is_err());
        let older_life = |bytes: &mut Vec<u8>| *bytes = Writer { run: 2, number: 1 }.record(7);
        assert!(ask(older_life).is_err());
    }
}
