//! Reads Prometheus' text format, version 0.0.4, and finds what is wrong with it, by its specification.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a row.
pub(crate) type Labels = BTreeMap<String, String>;

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    /// The kind of each name.
    pub(crate) kinds: BTreeMap<String, String>,
    rows: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Exposition {
    /// Rows of a name.
    pub(crate) fn rows(&self, name: &str) -> &[(Labels, f64)] {
        self.rows.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of the row with exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: Labels =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.rows(name).iter().find(|(of, _)| *of == labels).map(|(_, value)| *value)
    }
}

fn is_name(text: &str, more: &str) -> bool {
    let fits = |byte: char| byte.is_ascii_alphanumeric() || byte == '_' || more.contains(byte);
    !text.is_empty() && text.chars().all(fits) && !text.starts_with(|it: char| it.is_ascii_digit())
}

/// `key="value",...`: backslash, quotation mark and newline are written with a backslash before.
fn labels(mut text: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    while !text.is_empty() {
        let (key, rest) = text.split_once("=\"").ok_or_else(|| format!("{text} is no label"))?;
        let (mut value, mut letters) = (String::new(), rest.char_indices());
        let end = loop {
            match letters.next().ok_or("a value does not end")? {
                (at, '"') => break at + 1,
                (_, '\\') => match letters.next().ok_or("a value does not end")?.1 {
                    'n' => value.push('\n'),
                    letter @ ('\\' | '"') => value.push(letter),
                    letter => return Err(format!("\\{letter} in a value")),
                },
                (_, letter) => value.push(letter),
            }
        };
        if !is_name(key, "") || labels.insert(key.to_owned(), value).is_some() {
            return Err(format!("the label {key}"));
        }
        text = &rest[end..];
        text = match text.strip_prefix(',') {
            Some(rest) => rest,
            None if text.is_empty() => text,
            None => return Err(format!("{text} behind a label")),
        };
    }
    Ok(labels)
}

fn row(line: &str) -> Result<(String, Labels, f64), String> {
    let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, labels(rest.strip_suffix('}').ok_or("no } behind labels")?)?),
        None => (series, Labels::new()),
    };
    let value = value.parse().map_err(|_| format!("the value {value}"))?;
    Ok((name.to_owned(), labels, value))
}

/// Reads all of it.
pub(crate) fn read(text: &str) -> Result<Exposition, String> {
    let (mut told, mut helped) = (Exposition::default(), BTreeSet::new());
    let mut last = String::new();
    if !text.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    for line in text.lines() {
        let wrong = |why: &str| Err(format!("{line}: {why}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.len() < 5 || !helped.insert(name.to_owned()) {
                return wrong("no help, or twice");
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            let is_kind = ["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind);
            if !is_kind || told.kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                return wrong("the type");
            }
            name.clone_into(&mut last);
        } else if !line.starts_with('#') {
            let (name, labels, value) = row(line).map_err(|why| format!("{line}: {why}"))?;
            if name != last || !is_name(&name, ":") || !helped.contains(&name) {
                return wrong("it is not below its help and type");
            }
            let is_counter = told.kinds[&name] == "counter";
            if is_counter != name.ends_with("_total") || is_counter && value < 0.0 {
                return wrong("counters end with _total, and only they, and are never negative");
            }
            let rows = told.rows.entry(name).or_default();
            if rows.iter().any(|(of, _)| *of == labels) {
                return wrong("there are two of it");
            }
            rows.push((labels, value));
        }
    }
    Ok(told)
}
