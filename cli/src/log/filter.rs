//! Which lines are written: `TESSERA_LOG`.
//!
//! A level, or levels of parts of the program, as the filters of `tracing` are written: `info`, `warn,dsm=debug`. A bare word that
//! is no level would be taken for the name of a part there, and show nothing: here it is refused.

use anyhow::{Context, Result, bail};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Its name in the environment.
pub(crate) const VARIABLE: &str = "TESSERA_LOG";
/// Bytes of it.
const LENGTH_MAX: usize = 4096;

/// That of this process.
pub(super) fn of_environment() -> Result<EnvFilter> {
    match std::env::var_os(VARIABLE) {
        Some(text) => parse(text.to_str().with_context(|| format!("{VARIABLE} is no text"))?),
        None => parse(""),
    }
}

fn parse(text: &str) -> Result<EnvFilter> {
    if text.len() > LENGTH_MAX {
        bail!("{VARIABLE} has more than {LENGTH_MAX} bytes");
    }
    let mut depth = 0_usize;
    let words = text.split(|letter| {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let words: Vec<&str> = words.map(str::trim).filter(|word| !word.is_empty()).collect();
    for word in &words {
        if !word.contains(['=', '[']) && word.parse::<LevelFilter>().is_err() {
            bail!(
                "{VARIABLE} has {word:?}, which is no level (off, error, warn, info, debug, trace); \
                 a part of the program has one by PART=LEVEL"
            );
        }
    }
    // No words at all are that one.
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    // Patterns of values would be compiled from what the environment says.
    let filter = builder.with_regex(false).parse(words.join(","));
    filter.with_context(|| format!("{VARIABLE} cannot be followed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_parts_and_nothing_are_filters() {
        for (text, most) in [
            ("", LevelFilter::INFO),
            ("warn", LevelFilter::WARN),
            ("INFO", LevelFilter::INFO),
            ("off", LevelFilter::OFF),
            ("warn,dsm=debug, vmm=trace", LevelFilter::TRACE),
        ] {
            let filter = parse(text).unwrap();
            assert_eq!(filter.max_level_hint(), Some(most), "{text}");
        }
    }

    #[test]
    fn words_that_would_show_nothing_are_refused() {
        for text in ["verbose", "info,dsm", "dsm=loud", "[a{b=1}", &"a".repeat(5000)] {
            assert!(parse(text).is_err(), "{text}");
        }
        let refused = parse("info,verbose").unwrap_err().to_string();
        assert!(refused.contains("verbose") && refused.contains("debug"), "{refused}");
    }
}
