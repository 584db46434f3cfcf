//! Files with certificates, as far as options can be judged by them.

use std::path::Path;

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Whether a file in PEM has any.
pub(crate) fn has_certificate(pem: &[u8]) -> bool {
    pem.windows(BEGIN.len()).any(|it| it == BEGIN)
}

/// What is told of one that has none.
pub(crate) fn no_certificate(path: &Path) -> String {
    format!("{} has no certificate in PEM", path.display())
}
