//! Who is who in the cluster: an authority that is made for one run, and certificates of hosts and of the orchestrator in the folder that
//! hosts share.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// The authority's certificate.
pub(super) const AUTHORITY: &str = "authority.pem";

/// Makes the authority, and a certificate for each of these names at this address, as `NAME.pem` and `NAME.key`.
pub(super) fn make(folder: &Path, names: &[(String, Ipv4Addr)]) -> Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    write(&folder.join(AUTHORITY), &authority.pem(), 0o644)?;
    for (name, address) in names {
        let params = CertificateParams::new(vec![name.clone(), address.to_string()])?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &*authority)?;
        write(&folder.join(format!("{name}.pem")), &certificate.pem(), 0o644)?;
        write(&folder.join(format!("{name}.key")), &key.serialize_pem(), 0o600)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    let permissions = Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).with_context(|| format!("protect {}", path.display()))
}
