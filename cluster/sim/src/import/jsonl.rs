//! Our own format: a JSON object on each line, as `{"at_s":60,"life_s":3600,"cores":4,"memory_mib":8192,"class":"requests"}`.
//! Empty lines count for nothing. A field that is not known is refused.

use super::row::{Row, RowError};
use super::{Builder, ImportError, ORIGIN, Trace, each_line};
use crate::workload::Request;
use scheduler::Class;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// When it comes, in seconds from the beginning of the trace.
    at_s: f64,
    life_s: f64,
    cores: u32,
    memory_mib: u64,
    #[serde(default)]
    class: ClassName,
    /// Slices that it may have, if its class does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slices_max: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ClassName {
    Independent,
    Requests,
    #[default]
    Default,
    Shared,
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Self {
        match name {
            ClassName::Independent => Self::Independent,
            ClassName::Requests => Self::Requests,
            ClassName::Default => Self::Default,
            ClassName::Shared => Self::Shared,
        }
    }
}

impl From<Class> for ClassName {
    fn from(class: Class) -> Self {
        match class {
            Class::Independent => Self::Independent,
            Class::Requests => Self::Requests,
            Class::Default => Self::Default,
            Class::Shared => Self::Shared,
        }
    }
}

/// Reads a trace.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(file: impl BufRead) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    each_line(file, |text| if text.trim().is_empty() { Ok(()) } else { builder.add(row(text)?) })?;
    builder.finish()
}

fn row(text: &str) -> Result<Row, RowError> {
    let line: Line =
        serde_json::from_str(text).map_err(|error| RowError::Json(error.to_string()))?;
    if line.slices_max == Some(0) {
        let (value, least, most) = (0.0, 1.0, f64::from(u16::MAX));
        return Err(RowError::Range { column: "slices_max", value, least, most });
    }
    // More than that is refused by its range, so it need not be exact.
    #[expect(clippy::cast_precision_loss, reason = "see above")]
    let memory_mib = line.memory_mib as f64;
    // To the millisecond, so that a sum at the end of what is possible is not beyond it.
    let exact = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
    let (begins, ends) = (exact(line.at_s), exact(line.at_s + line.life_s));
    let (class, slices_max) = (line.class.into(), line.slices_max);
    Ok(Row { begins, ends, cores: f64::from(line.cores), memory_mib, class, slices_max })
}

/// Writes a trace.
///
/// # Errors
/// It cannot be written.
pub fn write(requests: &[Request], mut to: impl Write) -> io::Result<()> {
    for it in requests {
        let (spec, seconds) = (&it.spec, |ms: i64| {
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of a trace are exact")]
            let ms = ms as f64;
            ms / 1000.0
        });
        let signed = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        let is_usual = spec.slices_max == spec.class.slices_max();
        let line = Line {
            at_s: seconds(signed(it.at) - signed(ORIGIN)),
            life_s: seconds(signed(it.life)),
            cores: spec.needs.cores,
            memory_mib: u64::from(spec.needs.memory) * 2,
            class: spec.class.into(),
            slices_max: (!is_usual).then_some(spec.slices_max),
        };
        serde_json::to_writer(&mut to, &line)?;
        to.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use scheduler::{Resources, Spec};
    use std::sync::Arc;

    fn refusal(text: &str) -> String {
        read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn bad_lines_are_refused_with_their_number() {
        let good = r#"{"at_s":0,"life_s":60,"cores":2,"memory_mib":4096}"#;
        for (bad, why) in [
            ("{", "EOF"),
            (r#"{"at_s":0,"life_s":60,"cores":2}"#, "memory_mib"),
            (r#"{"at_s":0,"life_s":60,"cores":2,"memory_mib":4,"colour":1}"#, "colour"),
            (r#"{"at_s":0,"life_s":-1,"cores":2,"memory_mib":4}"#, "ends at -1"),
            (r#"{"at_s":0,"life_s":1,"cores":0,"memory_mib":4}"#, "cores is 0"),
            (r#"{"at_s":1e300,"life_s":1,"cores":1,"memory_mib":4}"#, "begin is"),
            (r#"{"at_s":0,"life_s":1,"cores":1,"memory_mib":4,"slices_max":0}"#, "slices_max"),
            (r#"{"at_s":0,"life_s":1,"cores":1,"memory_mib":4,"class":"fast"}"#, "fast"),
        ] {
            let found = refusal(&format!("{good}\n\n{bad}\n{good}\n"));
            assert!(found.starts_with("line 3: ") && found.contains(why), "{found}");
        }
        assert_eq!(refusal("\n"), "there is no VM in it");
        let long = format!("{good}\n{}", "x".repeat(super::super::LINE_BYTES_MAX + 1));
        assert!(refusal(&long).starts_with("line 2: it is longer"), "{}", refusal(&long));
        assert_eq!(read(&b"\xff\n"[..]).unwrap_err().to_string(), "line 1: it is not UTF-8");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            vms in prop::collection::vec(
                (0u64..2 * ORIGIN, 1u64..ORIGIN, 1u32..200, 1u32..1_000_000, 0..4usize, 1u16..9),
                1..20,
            )
        ) {
            let classes = [Class::Independent, Class::Requests, Class::Default, Class::Shared];
            let mut requests: Vec<_> = vms.into_iter().map(|(at, life, cores, units, class, slices)| {
                let spec = Spec::new(Resources::new(cores, units), classes[class]);
                Request { at, life, spec: Arc::new(Spec { slices_max: slices, ..spec }) }
            }).collect();
            requests.sort_by_key(|it| it.at);
            let mut text = Vec::new();
            write(&requests, &mut text).unwrap();

            let trace = read(&text[..]).unwrap();

            // A millisecond may be lost in the fraction of a second.
            prop_assert_eq!(trace.requests.len(), requests.len());
            for (read, written) in trace.requests.iter().zip(&requests) {
                prop_assert!(read.at.abs_diff(written.at) <= 1);
                prop_assert!(read.life.abs_diff(written.life) <= 2);
            }
            let specs = |all: &[Request]| {
                let mut specs: Vec<_> = all.iter().map(|it| format!("{:?}", it.spec)).collect();
                specs.sort();
                specs
            };
            prop_assert_eq!(specs(&trace.requests), specs(&requests));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(trace) = read(&bytes[..]) {
                prop_assert!(!trace.requests.is_empty());
            }
        }
    }
}
