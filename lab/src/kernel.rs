//! The kernels of the lab: where the files of an unpacked kernel package are, and the ELF kernel
//! inside a bzImage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{cache, packages};

/// Files of one kernel.
#[derive(Clone, Debug)]
pub struct KernelFiles {
    /// Version as in `uname -r`.
    pub version: String,
    /// The bzImage.
    pub vmlinuz: PathBuf,
    /// The ELF kernel taken out of the bzImage (no symbols).
    pub vmlinux: PathBuf,
    /// The build configuration.
    pub config: PathBuf,
    /// `System.map`; Debian ships a stub, so its addresses may be missing.
    pub system_map: PathBuf,
    /// Root of the unpacked package: `lib/modules/VERSION` is below.
    pub root: PathBuf,
}

impl KernelFiles {
    /// The files in the root of an unpacked kernel package. The ELF kernel is made the first time.
    pub(crate) fn in_package(root: &Path) -> Result<Self> {
        let version = packages::only_entry(&root.join("lib/modules"))?;
        let boot = root.join("boot");
        let file = |name: &str| boot.join(format!("{name}-{version}"));
        let files = Self {
            vmlinuz: file("vmlinuz"),
            vmlinux: boot.join("vmlinux"),
            config: file("config"),
            system_map: file("System.map"),
            root: root.to_owned(),
            version,
        };
        if !files.vmlinux.exists() {
            let image = fs::read(&files.vmlinuz)
                .with_context(|| format!("read {}", files.vmlinuz.display()))?;
            let kernel = elf_kernel(&image)
                .with_context(|| format!("take the kernel out of {}", files.vmlinuz.display()))?;
            cache::write_atomically(&files.vmlinux, &kernel)?;
        }
        Ok(files)
    }
}

/// The Debian cloud kernel that guests boot, downloaded the first time; `say` hears the progress.
///
/// # Errors
/// When the package cannot be fetched or is not laid out as expected.
pub fn guest_kernel(say: &dyn Fn(&str)) -> Result<KernelFiles> {
    KernelFiles::in_package(&packages::prepare(say)?.guest_kernel)
}

/// Takes the ELF kernel out of a bzImage (Linux, `Documentation/arch/x86/boot.rst`: `setup_sects` at
/// 0x1f1, `HdrS` at 0x202, `payload_offset` at 0x248, `payload_length` at 0x24c).
pub(crate) fn elf_kernel(image: &[u8]) -> Result<Vec<u8>> {
    let byte = |at: usize| image.get(at).copied().context("the image is too short");
    let word = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("the image is too short")?;
        Ok(usize::try_from(u32::from_le_bytes(bytes.try_into()?))?)
    };
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "it is no bzImage");
    let setup_sectors = match byte(0x1f1)? {
        0 => 4, // the value of kernels that are older than the field
        count => usize::from(count),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let length = word(0x24c)?;
    // The last four bytes of the payload are the size of the kernel, not part of the stream.
    let end = (start + length).checked_sub(4).context("the payload is empty")?;
    let payload = image.get(start..end).context("the payload lies outside the image")?;
    let program = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x02, 0x21, 0x4c, 0x18, ..] => "lz4",
        [0x1f, 0x8b, ..] => "gzip",
        [0x7f, b'E', b'L', b'F', ..] => return Ok(payload.to_vec()),
        _ => bail!("the payload is compressed in a way this program does not know"),
    };
    let kernel = decompress(program, payload)?;
    ensure!(kernel.starts_with(b"\x7fELF"), "the payload is no ELF kernel");
    Ok(kernel)
}

/// Decompresses with a program of the machine that takes `-dc`.
pub(crate) fn decompress(program: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Process::new("timeout")
        .args(["-k", "5", "120", program, "-dc"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let mut input = child.stdin.take().context("input of the decompressor")?;
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A decompressor that stops early shows in its exit code.
            drop(std::io::Write::write_all(&mut input, bytes));
        });
        child.wait_with_output()
    })
    .with_context(|| format!("read from {program}"))?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    Ok(output.stdout)
}

/// A kernel module of the machine's packages as the kernel wants it: not compressed.
pub(crate) fn module(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(bytes),
        Some("xz") => decompress("xz", &bytes),
        Some("zst") => decompress("zstd", &bytes),
        Some("gz") => decompress("gzip", &bytes),
        _ => bail!("{} is no kernel module", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with this payload and nothing else.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len() + 4).unwrap();
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image.truncate(1024 + 16);
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; 4]);
        image
    }

    #[test]
    fn plain_elf_payload_is_taken_as_it_is() {
        assert_eq!(elf_kernel(&image(b"\x7fELFrest")).unwrap(), b"\x7fELFrest");
    }

    #[test]
    fn payload_beyond_the_image_is_refused() {
        let mut image = image(b"\x7fELFrest");
        image.truncate(1045);

        assert!(elf_kernel(&image).is_err());
    }

    #[test]
    fn file_that_is_no_bzimage_is_refused() {
        assert!(elf_kernel(&[0; 4096]).unwrap_err().to_string().contains("no bzImage"));
    }
}
