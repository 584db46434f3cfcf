//! Names of hosts in addresses.
//!
//! A name is looked up once, when the command line is read, and what it became is said: slices find each other by addresses, and
//! a name that means another host later must not mean another slice.

use crate::log;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;
use vm_file::Address;

/// Servers of names that do not answer are given up by then.
const LIMIT: Duration = Duration::from_secs(10);

/// `ADDRESS:PORT` or `NAME:PORT`; an IPv6 address is in brackets.
///
/// # Errors
/// That it is neither, or that nobody knows the name.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let named: Address = text.parse().map_err(|error: vm_file::ValueError| error.to_string())?;
    let found = look_up(&named)?;
    let address = *found.first().ok_or_else(|| format!("{} has no address", named.host()))?;
    let more = match found.len() {
        1 => String::new(),
        all => format!(", the first of {all}"),
    };
    log::say(&format!("{named} is {address}{more}"));
    Ok(address)
}

/// All addresses of a name, the best first (RFC 6724).
fn look_up(named: &Address) -> Result<Vec<SocketAddr>, String> {
    let (sender, found) = channel();
    let (host, port) = (named.host().to_owned(), named.port());
    // The C library takes as long as it likes. This thread is left behind then.
    let work = move || {
        let all = (host.as_str(), port).to_socket_addrs();
        drop(sender.send(all.map(Iterator::collect)));
    };
    let start = Builder::new().name("names".into()).spawn(work);
    start.map_err(|error| format!("look up {}: {error}", named.host()))?;
    match found.recv_timeout(LIMIT) {
        Ok(Ok(all)) => Ok(all),
        Ok(Err(error)) => Err(format!("look up {}: {error}", named.host())),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(format!(
            "look up {}: no answer in {} s; write its address",
            named.host(),
            LIMIT.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_addresses_are_as_they_are() {
        for text in ["10.9.0.2:7100", "[fd00::2]:7100", "127.0.0.1:0"] {
            assert_eq!(address(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn name_of_this_host_is_looked_up() {
        let found = address("localhost:7100").unwrap();

        assert!(found.ip().is_loopback());
        assert_eq!(found.port(), 7100);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        // RFC 6761: `.invalid` never exists.
        for text in ["nobody.invalid:1", "", "nowhere", "fd00::2:7100", "a b:1", "host:"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
