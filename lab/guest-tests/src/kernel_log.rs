//! What the guest's kernel says in its log.

/// The text of a log record (`priority,sequence,time,flags;text`) when it is a complaint of the
/// kernel: level warning or worse, with one of the marks of a real trouble.
#[must_use]
pub fn complaint(record: &str) -> Option<&str> {
    const WARNING: u32 = 4;
    const MARKS: [&str; 9] = [
        "WARNING:",
        "BUG:",
        "Oops",
        "self-detected stall",
        "detected stalls",
        "detected expedited stalls",
        "soft lockup",
        "blocked for more than",
        "hung_task",
    ];
    let (head, body) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let text = body.lines().next()?;
    // The low three bits are the level, those above the facility (0: the kernel itself).
    let wanted = priority <= WARNING && MARKS.iter().any(|mark| text.contains(mark));
    wanted.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn complaint_of_the_kernel_is_found() {
        let record = "4,512,99,-;WARNING: CPU: 1 PID: 7 at kernel/x.c:1 f+0x1/0x2\n SUBSYSTEM=x\n";
        assert_eq!(complaint(record), Some("WARNING: CPU: 1 PID: 7 at kernel/x.c:1 f+0x1/0x2"));
        assert!(complaint("3,1,2,-;rcu: INFO: rcu_sched detected stalls on CPUs/tasks:").is_some());
        assert!(complaint("0,1,2,-;watchdog: BUG: soft lockup - CPU#1 stuck for 22s!").is_some());
    }

    #[test]
    fn complaint_below_warning_or_from_user_space_is_left_out() {
        assert_eq!(complaint("6,1,2,-;BUG: only informational"), None);
        assert_eq!(complaint("12,1,2,-;WARNING: from a program"), None);
        assert_eq!(complaint("4,1,2,-;TSC deadline timer enabled"), None);
        assert_eq!(complaint("no record"), None);
    }

    proptest! {
        #[test]
        fn complaint_of_any_record_never_panics(record in "[0-9,;a-zA-Z:\\n ]{0,60}|.{0,60}") {
            let _ = complaint(&record);
        }
    }
}
