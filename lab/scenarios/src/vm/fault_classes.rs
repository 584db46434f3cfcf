//! Faults by what the page holds, out of tessera's report.

use serde_json::Value;

/// Tables of the kernel that a slice fetches when it begins with no memory: each once, if replicas do their work. In
/// soaks of 2026-11-30 they were 17 to 21 (512 MiB, Linux 6.12).
const TABLES: u64 = 24;

/// Faults of all slices by class of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes {
    kernel_tables: u64,
    user_tables: u64,
    other: u64,
}

impl Classes {
    /// From tessera's report of a run.
    pub(crate) fn of(report: &Value) -> Option<Self> {
        let mut sum = Self::default();
        for slice in report.get("slices")?.as_array()? {
            let count = |class| slice.get("faults_by_class")?.get(class)?.as_u64();
            sum.kernel_tables += count("kernel_page_table")?;
            sum.user_tables += count("user_page_table")?;
            sum.other += count("other")?;
        }
        Some(sum)
    }

    pub(crate) fn all(self) -> u64 {
        self.kernel_tables + self.user_tables + self.other
    }

    /// True when replicas did not do their work: more than one fault of a hundred is for a table of
    /// the kernel. When slices have been `emptied` so many times, each has fetched all tables again.
    pub(crate) fn too_many_for_tables(self, emptied: usize) -> bool {
        let emptied = u64::try_from(emptied).unwrap_or(u64::MAX);
        let again = self.kernel_tables.saturating_sub(emptied.saturating_mul(TABLES));
        again * 100 > self.all()
    }

    pub(crate) fn line(self) -> String {
        let share = |count: u64| {
            let hundredths = (count * 10_000).checked_div(self.all()).unwrap_or(0);
            format!("{count} ({}.{:02} %)", hundredths / 100, hundredths % 100)
        };
        format!(
            "faults: {}; kernel page tables {}, page tables of processes {}\n",
            self.all(),
            share(self.kernel_tables),
            share(self.user_tables)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_of_all_slices_are_added() {
        let slice = |kernel: u64, other: u64| {
            let user = 0;
            json!({"faults_by_class":
                {"kernel_page_table": kernel, "user_page_table": user, "other": other}})
        };
        let classes = Classes::of(&json!({"slices": [slice(1, 99), slice(1, 99)]})).unwrap();

        assert!(!classes.too_many_for_tables(0));
        assert_eq!(
            classes.line(),
            "faults: 200; kernel page tables 2 (1.00 %), page tables of processes 0 (0.00 %)\n"
        );
        let more = Classes::of(&json!({"slices": [slice(1, 99), slice(2, 98)]})).unwrap();
        assert!(more.too_many_for_tables(0));
        // A slice that began anew has fetched its tables, and no more.
        let moved = Classes::of(&json!({"slices": [slice(TABLES + 1, 99), slice(2, 98)]})).unwrap();
        assert!(moved.too_many_for_tables(0) && moved.too_many_for_tables(1));
        assert!(!moved.too_many_for_tables(2));
        assert_eq!(Classes::of(&json!({"slices": [{}]})), None);
    }
}
