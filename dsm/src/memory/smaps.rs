//! How much of guest memory is on huge pages now, as the kernel tells it (`/proc/self/smaps`).

use super::ram::GuestRam;
use std::fs::File;
use std::io::{BufRead, BufReader, Error};
use std::ops::Range;

/// Counters of a mapping that count huge pages, in KiB (Linux `Documentation/filesystems/proc.rst`).
const HUGE: [&str; 5] =
    ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"];

impl GuestRam {
    /// Bytes of the guest's mapping that are mapped in huge pages.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn huge_bytes(&self) -> Result<u64, Error> {
        let file = File::open("/proc/self/smaps")?;
        let start = self.guest.start();
        huge_bytes(BufReader::new(file), &(start..start + self.bytes()))
    }
}

fn huge_bytes(smaps: impl BufRead, span: &Range<usize>) -> Result<u64, Error> {
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if let Some((from, _)) = first.split_once('-')
            && let Ok(from) = usize::from_str_radix(from, 16)
        {
            inside = span.contains(&from);
        } else if inside && HUGE.contains(&first) {
            sum += second.parse::<u64>().map_err(Error::other)? * 1024;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_inside_the_span_count() {
        let text = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 1 /memfd:x
Rss:                2048 kB
ShmemPmdMapped:     2048 kB
7f0000200000-7f0000600000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
7f0000600000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";
        let span = 0x7f00_0000_0000..0x7f00_0060_0000;
        assert_eq!(huge_bytes(text.as_bytes(), &span).unwrap(), 6 << 20);
        assert!(huge_bytes("10-20 rw\nAnonHugePages: x kB".as_bytes(), &(0..64)).is_err());
    }
}
