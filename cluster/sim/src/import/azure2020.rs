//! Azure's trace for packing of 2020: an SQLite file with the tables `vm` and `vmType`, times in days, resources as parts of a
//! machine.
//!
//! ```text
//!   vm(vmId, tenantId, vmTypeId, priority, starttime, endtime) --vmTypeId--> vmType(vmTypeId, machineId, core, memory, ...)
//! ```
//! A type takes another part of each kind of machine, so one kind is chosen, and whoever says what it has (cores, GiB). VMs whose
//! type is not made for it are skipped, and counted. The end of a VM that outlives 90 days is not known: it is the end of the trace.
//!
//! **SQLite by `rusqlite`, with SQLite itself inside.** The format is SQLite's own and large; a reader of ours would be a second
//! one to keep. The file is opened for reading alone, and what its schema says is not trusted.

use super::row::{Row, RowError, within};
use super::{Builder, ImportError, Trace};
use rusqlite::{Connection, OpenFlags};
use scheduler::Class;
use std::path::Path;

const DAY_S: f64 = 86_400.0;
/// Ends are not told beyond.
const LAST_DAY: f64 = 90.0;

/// What parts are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// `machineId` of the trace.
    pub id: i64,
    /// Its cores.
    pub cores: u32,
    /// Its memory.
    pub gib: u32,
}

/// Reads a trace.
///
/// # Errors
/// What is wrong with it, and in which row.
pub fn read(path: &Path, machine: Machine) -> Result<Trace, ImportError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    database.pragma_update(None, "trusted_schema", false)?;
    from(&database, machine)
}

const VMS: &str = "SELECT vm.rowid, vm.starttime, vm.endtime, type.core, type.memory \
    FROM vm JOIN vmType AS type ON type.vmTypeId = vm.vmTypeId \
    WHERE type.machineId = ?1 ORDER BY vm.rowid";
const SKIPPED: &str = "SELECT count(*) FROM vm WHERE vmTypeId NOT IN \
    (SELECT vmTypeId FROM vmType WHERE machineId = ?1 AND vmTypeId IS NOT NULL)";

fn from(database: &Connection, machine: Machine) -> Result<Trace, ImportError> {
    let mut builder = Builder::default();
    let mut statement = database.prepare(VMS)?;
    let mut rows = statement.query([machine.id])?;
    while let Some(found) = rows.next()? {
        let line = found.get::<_, i64>(0)?.unsigned_abs();
        let number = |at| found.get::<_, Option<f64>>(at);
        let (start, end, core, memory) = (number(1)?, number(2)?, number(3)?, number(4)?);
        builder.outlive += u64::from(end.is_none());
        let row = row(machine, start, end, core.zip(memory));
        row.and_then(|row| builder.add(row)).map_err(|what| ImportError::Row { line, what })?;
    }
    let skipped: i64 = database.query_row(SKIPPED, [machine.id], |row| row.get(0))?;
    builder.skipped = u64::try_from(skipped).unwrap_or(0);
    match builder.finish() {
        Err(ImportError::Empty) if skipped > 0 => Err(ImportError::NoMachine(machine.id)),
        result => result,
    }
}

fn row(
    machine: Machine,
    start: Option<f64>,
    end: Option<f64>,
    parts: Option<(f64, f64)>,
) -> Result<Row, RowError> {
    let missing = |column| RowError::Number { column, text: "NULL".to_owned() };
    let begins = start.ok_or_else(|| missing("starttime"))?;
    let (core, memory) = parts.ok_or_else(|| missing("core or memory"))?;
    let core = within("core", core, f64::MIN_POSITIVE, 1.0)?;
    let memory = within("memory", memory, f64::MIN_POSITIVE, 1.0)?;
    Ok(Row {
        begins: begins * DAY_S,
        ends: end.unwrap_or_else(|| LAST_DAY.max(begins)) * DAY_S,
        // The trace has parts of a core.
        cores: (core * f64::from(machine.cores)).ceil().max(1.0),
        memory_mib: (memory * f64::from(machine.gib) * 1024.0).max(2.0),
        class: Class::Default,
        slices_max: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::ORIGIN;
    use proptest::prelude::*;
    use scheduler::Resources;

    const MACHINE: Machine = Machine { id: 7, cores: 40, gib: 256 };
    const DAY: u64 = 86_400_000;

    /// A database of that form, with made-up rows.
    fn database(vms: &[&str]) -> Connection {
        let database = Connection::open_in_memory().unwrap();
        let schema = "CREATE TABLE vm (vmId INTEGER, tenantId INTEGER, vmTypeId INTEGER, \
            priority INTEGER, starttime REAL, endtime REAL); \
            CREATE TABLE vmType (id INTEGER, vmTypeId INTEGER, machineId INTEGER, core REAL, \
            memory REAL, hdd REAL, ssd REAL, nic REAL); \
            INSERT INTO vmType VALUES (1, 10, 7, 0.1, 0.25, 0, 0, 0), (2, 10, 8, 0.2, 0.5, 0, 0, 0), \
            (3, 11, 8, 0.5, 0.5, 0, 0, 0), (4, 12, 7, 1.5, 0.5, 0, 0, 0);";
        database.execute_batch(schema).unwrap();
        for vm in vms {
            database.execute_batch(&format!("INSERT INTO vm VALUES ({vm})")).unwrap();
        }
        database
    }

    #[test]
    fn vms_of_one_machine_are_read() {
        let database = database(&[
            "1, 5, 10, 0, 0.5, 1.5",
            "2, 5, 10, 1, -7157.0, NULL",
            "3, 5, 11, 0, 0.0, 1.0",
        ]);

        let trace = from(&database, MACHINE).unwrap();

        assert_eq!((trace.outlive, trace.skipped, trace.requests.len()), (1, 1, 2));
        assert_eq!((trace.requests[0].at, trace.end), (0, ORIGIN + 90 * DAY));
        assert_eq!(trace.requests[1].at, ORIGIN + DAY / 2);
        assert_eq!(trace.requests[1].life, DAY);
        assert_eq!(trace.requests[1].spec.needs, Resources::new(4, 32_768));
    }

    #[test]
    fn bad_rows_are_refused_with_their_number() {
        for (bad, why) in [
            ("2, 5, 10, 0, 1.0, 0.5", "line 2: it ends at 43200 and begins at 86400"),
            ("2, 5, 10, 0, NULL, 0.5", "line 2: starttime: \"NULL\""),
            ("2, 5, 12, 0, 0.0, 0.5", "line 2: core is 1.5"),
        ] {
            let found = from(&database(&["1, 5, 10, 0, 0, 1", bad]), MACHINE).unwrap_err();
            assert!(found.to_string().starts_with(why), "{found}");
        }
        let text = from(&database(&["1, 5, 10, 0, 'soon', 1"]), MACHINE).unwrap_err();
        assert!(matches!(text, ImportError::Database(_)), "{text}");
        assert!(matches!(from(&database(&[]), MACHINE), Err(ImportError::Empty)));
        let other = Machine { id: 9, ..MACHINE };
        let found = from(&database(&["1, 5, 10, 0, 0, 1"]), other).unwrap_err();
        assert_eq!(found.to_string(), "no VM of the trace has a type for machine 9");
    }

    #[test]
    fn what_is_no_such_database_is_refused() {
        let empty = Connection::open_in_memory().unwrap();
        assert!(matches!(from(&empty, MACHINE), Err(ImportError::Database(_))));
        let missing = Path::new("no-such-folder/trace.sqlite");
        assert!(matches!(read(missing, MACHINE), Err(ImportError::Database(_))));
    }

    proptest! {
        #[test]
        fn no_numbers_make_it_panic(start: f64, end: Option<f64>, core: f64, memory: f64) {
            let mut builder = Builder::default();
            let row = row(MACHINE, Some(start), end, Some((core, memory)));
            if row.and_then(|row| builder.add(row)).is_ok() {
                let trace = builder.finish().unwrap();
                prop_assert!(trace.requests[0].spec.check().is_ok());
            }
        }
    }
}
