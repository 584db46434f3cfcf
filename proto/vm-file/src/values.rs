//! Values with a grammar of their own. Each is checked when it is read.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as Unfit, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// As of host names in DNS.
const NAME_BYTES_MAX: usize = 63;
/// As of host names in DNS, with their dots.
const HOST_BYTES_MAX: usize = 253;
/// As of Linux.
const PATH_BYTES_MAX: usize = 4095;

/// A text that is no value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{found:?} is no {kind}: {wanted}")]
pub struct ValueError {
    found: String,
    kind: &'static str,
    wanted: &'static str,
}

/// A value with a grammar: what it is called, how it is written, and as a regular expression for the schema.
trait Grammar: FromStr<Err = ValueError> + Display {
    const KIND: &'static str;
    const WANTED: &'static str;
    const PATTERN: &'static str;

    fn error(found: &str) -> ValueError {
        ValueError { found: shown(found), kind: Self::KIND, wanted: Self::WANTED }
    }
}

/// So much of a text as an error shows.
fn shown(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// serde and schemars of values that are always written as text.
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": <$name as Grammar>::PATTERN })
            }
        }
    )*};
}

as_text!(Name, Address, Borrow, Mac, Path);

/// serde and schemars of numbers that have a unit, or none: then the number is one.
macro_rules! with_unit {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Either;

                impl Visitor<'_> for Either {
                    type Value = $name;

                    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                        f.write_str(<$name as Grammar>::WANTED)
                    }

                    fn visit_u64<E: Unfit>(self, number: u64) -> Result<$name, E> {
                        Ok($name(number))
                    }

                    fn visit_i64<E: Unfit>(self, number: i64) -> Result<$name, E> {
                        let negative = || E::invalid_value(Unexpected::Signed(number), &self);
                        u64::try_from(number).map($name).map_err(|_| negative())
                    }

                    fn visit_str<E: Unfit>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_any(Either)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "anyOf": [
                        { "type": "string", "pattern": <$name as Grammar>::PATTERN },
                        { "type": "integer", "minimum": 0 },
                    ]
                })
            }
        }
    )*};
}

with_unit!(Size, Period);

/// A number before its unit: digits alone.
fn number(digits: &str) -> Option<u64> {
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { digits.parse().ok() } else { None }
}

/// A name of a VM: small letters, digits and `-`, which neither begins nor ends it; 63 of them at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Grammar for Name {
    const KIND: &'static str = "name";
    const WANTED: &'static str =
        "1 to 63 small letters, digits and '-', which neither begins nor ends it";
    const PATTERN: &'static str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
}

impl Name {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = (1..=NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good { Ok(Self(text.to_owned())) } else { Err(Self::error(text)) }
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes. `512M` and `512Mi` are the same: units are powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Grammar for Size {
    const KIND: &'static str = "size";
    const WANTED: &'static str = "write 512M, 2G, 1T or bytes";
    const PATTERN: &'static str = "^[0-9]+([MGT]i?)?$";
}

impl Size {
    const UNITS: [(&'static str, u32); 3] = [("T", 40), ("G", 30), ("M", 20)];

    /// So many bytes.
    #[must_use]
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || Self::error(text);
        let without_i = text.strip_suffix('i');
        let of_unit = |(unit, shift): &(&str, u32)| {
            Some((without_i.unwrap_or(text).strip_suffix(unit)?, *shift))
        };
        let (digits, shift) = match Self::UNITS.iter().find_map(of_unit) {
            Some(split) => split,
            None => (text, 0),
        };
        let bytes = number(digits).and_then(|number| number.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(error)
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let whole = |(_, shift): &&(&str, u32)| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match Self::UNITS.iter().find(whole) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A length of time in whole seconds: `30s`, `10m`, `2h`, `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

impl Grammar for Period {
    const KIND: &'static str = "length of time";
    const WANTED: &'static str = "write 30s, 10m, 2h, 1d or seconds";
    const PATTERN: &'static str = "^[0-9]+[smhd]?$";
}

impl Period {
    const UNITS: [(&'static str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

    /// So many seconds.
    #[must_use]
    pub const fn of_seconds(seconds: u64) -> Self {
        Self(seconds)
    }

    /// In seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0
    }
}

impl FromStr for Period {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let of_unit = |(unit, seconds): &(&str, u64)| Some((text.strip_suffix(unit)?, *seconds));
        let (digits, seconds) = Self::UNITS.iter().find_map(of_unit).unwrap_or((text, 1));
        let period = number(digits).and_then(|number| number.checked_mul(seconds));
        period.map(Self).ok_or_else(|| Self::error(text))
    }
}

impl Display for Period {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let whole = |(_, seconds): &&(&str, u64)| self.0 != 0 && self.0.is_multiple_of(*seconds);
        let (unit, seconds) = Self::UNITS.iter().find(whole).unwrap_or(&("s", 1));
        write!(f, "{}{unit}", self.0 / seconds)
    }
}

/// When vCPUs of other slices are used, in the words of `tessera bootstrap --borrow`, which bounds its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Borrow(String);

impl Grammar for Borrow {
    const KIND: &'static str = "time to borrow";
    const WANTED: &'static str = "write always, after:SECONDS, adaptive or adaptive:SECONDS";
    const PATTERN: &'static str = "^(always|after:[0-9]{1,9}|adaptive(:[0-9]{1,9})?)$";
}

impl Borrow {
    /// From the start, as it is unless something else is said.
    #[must_use]
    pub fn is_always(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Borrow {
    fn default() -> Self {
        Self("always".to_owned())
    }
}

impl FromStr for Borrow {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_number = |digits: &str| (1..=9).contains(&digits.len()) && number(digits).is_some();
        let good = match text.split_once(':') {
            None => matches!(text, "always" | "adaptive"),
            Some((when, seconds)) => matches!(when, "after" | "adaptive") && is_number(seconds),
        };
        if good { Ok(Self(text.to_owned())) } else { Err(Self::error(text)) }
    }
}

impl Display for Borrow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a companion listens: `HOST:PORT`. HOST is a name, an IPv4 address, or an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

impl Grammar for Address {
    const KIND: &'static str = "address";
    const WANTED: &'static str =
        "write HOST:PORT, as host2:7100, 10.9.0.2:7100 or [fd00::2]:7100; the port is 1 to 65535";
    const PATTERN: &'static str = r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]):[0-9]{1,5}$";
}

impl Address {
    /// The name or the address, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn is_name(host: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let without_root = host.strip_suffix('.').unwrap_or(host);
        host.len() <= HOST_BYTES_MAX
            && host.bytes().all(allowed)
            && !host.contains("..")
            && ends(host.bytes().next())
            && ends(without_root.bytes().last())
    }

    /// An IPv6 address, maybe with the interface of a link-local one.
    fn is_bracketed(host: &str) -> bool {
        let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        address.parse::<std::net::Ipv6Addr>().is_ok()
            && (1..=15).contains(&zone.len())
            && zone.bytes().all(allowed)
    }
}

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || Self::error(text);
        let (place, port) = text.rsplit_once(':').ok_or_else(error)?;
        let host = match place.strip_prefix('[').and_then(|place| place.strip_suffix(']')) {
            Some(host) if Self::is_bracketed(host) => host,
            None if Self::is_name(place) => place,
            _ => return Err(error()),
        };
        let port = number(port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        Ok(Self { host: host.to_owned(), port: port.ok_or_else(error)? })
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// An address of a network device: `02:00:00:00:00:01`. It is of one device, not of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

impl Grammar for Mac {
    const KIND: &'static str = "MAC address";
    const WANTED: &'static str =
        "write six bytes as 02:00:00:00:00:01; the first is even, and not all are 0";
    const PATTERN: &'static str = "^[0-9A-Fa-f][02468aceACE](:[0-9A-Fa-f]{2}){5}$";
}

impl Mac {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for Mac {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || Self::error(text);
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && !part.contains('+'));
            *byte = u8::from_str_radix(part.ok_or_else(error)?, 16).map_err(|_| error())?;
        }
        let good = parts.next().is_none() && bytes[0] & 1 == 0 && bytes != [0; 6];
        if good { Ok(Self(bytes)) } else { Err(error()) }
    }
}

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A path of a file, or a name of an interface: not empty, no comma, which ends a word in the grammar of options, no control
/// character.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(String);

impl Grammar for Path {
    const KIND: &'static str = "name of a file or of an interface";
    const WANTED: &'static str = "1 to 4095 bytes without a comma or a control character";
    const PATTERN: &'static str = "^[^,\\u0000-\\u001f\\u007f-\\u009f]+$";
}

impl Path {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Path {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let good = (1..=PATH_BYTES_MAX).contains(&text.len())
            && !text.contains(|it: char| it == ',' || it.is_control());
        if good { Ok(Self(text.to_owned())) } else { Err(Self::error(text)) }
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
