//! Hosts by their numbers.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Most hosts of a lab.
pub const MAX_HOSTS: usize = 32;

/// A host by its number, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostNumber(usize);

impl HostNumber {
    /// A host number from 1 to [`MAX_HOSTS`].
    ///
    /// # Errors
    /// When the number is outside.
    pub fn new(number: usize) -> Result<Self> {
        ensure!((1..=MAX_HOSTS).contains(&number), "host {number}: hosts are 1 to {MAX_HOSTS}");
        Ok(Self(number))
    }

    /// The first `count` hosts.
    pub fn first(count: usize) -> impl Iterator<Item = Self> {
        (1..=count.min(MAX_HOSTS)).map(Self)
    }

    /// The number, from 1.
    pub fn get(self) -> usize {
        self.0
    }

    /// The number, from 0.
    pub(crate) fn index(self) -> usize {
        self.0 - 1
    }

    /// Address on the lab's private network: 10.9.0.N.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, u8::try_from(self.0).unwrap_or(u8::MAX))
    }
}

impl fmt::Display for HostNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for HostNumber {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.strip_prefix("host-").unwrap_or(text);
        Self::new(number.parse().with_context(|| format!("host '{text}' is no number"))?)
    }
}
