//! What is told at one moment: names, words and rows.

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::AtomicU64;

/// A label and its value.
pub type Label = (&'static str, String);

/// Labels of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Labels(Vec<Label>);

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

/// A page. Names have the prefix `tessera_`, those of counters also the end `_total`: neither is given.
#[derive(Debug)]
pub struct Page(Registry);

impl Default for Page {
    fn default() -> Self {
        Self(Registry::with_prefix("tessera"))
    }
}

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Prometheus, version 0.0.4.
    Prometheus,
    /// `OpenMetrics`, version 1.0.0.
    OpenMetrics,
}

impl Written {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Page {
    /// Rows of what can grow and shrink. `help` is a sentence without its full stop.
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in rows {
            family.get_or_create(&Labels(labels)).set(value);
        }
        self.0.register(name, help, family);
    }

    /// Rows of what only grows. Rows with the same labels are added up.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) {
        let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
        for (labels, value) in rows {
            // What is less than nothing would have a counter panic.
            family.get_or_create(&Labels(labels)).inc_by(value.max(0.0));
        }
        self.0.register(name, help, family);
    }

    /// Which program tells this.
    pub fn build(&mut self, version: &str) {
        let labels = vec![("version", version.to_owned())];
        self.gauge("build_info", "Which version of Tessera this is", [(labels, 1.0)]);
    }

    /// For what lasts longer than a page, such as a histogram: register a clone of it.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.0
    }

    /// The page as Prometheus reads it; none if it cannot be written.
    #[must_use]
    pub fn text(&self) -> String {
        self.write(Written::Prometheus).unwrap_or_default()
    }

    pub(crate) fn write(&self, as_what: Written) -> Result<String, fmt::Error> {
        let mut written = String::new();
        match as_what {
            Written::Prometheus => prometheus_text::encode(&mut written, &self.0)?,
            Written::OpenMetrics => text::encode(&mut written, &self.0)?,
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_names_words_and_rows() {
        let mut page = Page::default();
        page.build("1.2.3");
        let row = |kind: &str, value| (vec![("kind", kind.to_owned())], value);
        page.counter("dsm_faults", "Faults", [row("read", 2.0), row("read", 3.0)]);
        page.gauge("host_cores", "Cores", [(Vec::new(), 4.0)]);

        let text = page.write(Written::Prometheus).unwrap();
        for line in [
            "# TYPE tessera_build_info gauge",
            "tessera_build_info{version=\"1.2.3\"} 1.0",
            "# TYPE tessera_dsm_faults_total counter",
            "tessera_dsm_faults_total{kind=\"read\"} 5.0",
            "tessera_host_cores 4.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        let open = page.write(Written::OpenMetrics).unwrap();
        assert!(open.contains("# TYPE tessera_dsm_faults counter\n"), "{open}");
        assert!(open.ends_with("# EOF\n"), "{open}");
    }

    #[test]
    fn counter_of_less_than_nothing_is_nothing() {
        let mut page = Page::default();
        page.counter("x", "X", [(Vec::new(), -1.0)]);

        assert!(page.write(Written::Prometheus).unwrap().contains("tessera_x_total 0.0\n"));
    }
}
