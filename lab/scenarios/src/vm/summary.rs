//! What a run amounts to: a table for people, JSON for programs.

use outcome::table;
use serde_json::{Map, Value, json};

use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::{GuestReport, Verdict};
use crate::vm::judge::Outcome;
use crate::vm::scenario::Scenario;

/// Of the table of slices.
const COLUMNS: [&str; 9] = [
    "slice",
    "host",
    "vCPUs",
    "MiB",
    "faults r/w/u",
    "page tables",
    "pages in/out",
    "interrupts in/out",
    "skew ns",
];

/// The report of one run as JSON.
pub(crate) fn json(scenario: &Scenario<'_>, outcome: &Outcome) -> Value {
    let guest = &outcome.guest;
    let verdict = |verdict| if verdict == Verdict::Pass { "pass" } else { "fail" };
    let tests: Map<_, _> = guest
        .tests
        .iter()
        .map(|(name, (result, _))| (name.clone(), verdict(*result).into()))
        .collect();
    let details: Map<_, _> = guest
        .tests
        .iter()
        .map(|(name, (_, detail))| (name.clone(), detail.as_str().into()))
        .collect();
    json!({
        "substrate": scenario.lab.substrate().to_string(),
        "mode": scenario.lab.mode(),
        "interrupts": scenario.interrupts.map(|interrupts| interrupts.name()),
        "passed": outcome.problems.is_empty(),
        "problems": outcome.problems,
        "boot_seconds": outcome.boot_seconds,
        "seconds": outcome.seconds,
        "guest": {
            "cpus_online": guest.cpus_online,
            "numa_nodes": guest.numa_nodes,
            "kernel_warnings": guest.kernel_warnings,
            "tests": tests,
            "test_details": details,
        },
        "slices": slices(scenario, outcome.report.as_ref()),
        // What else tessera reports: boot time, hottest pages and the like.
        "tessera": outcome.report.as_ref().map(without_slices),
    })
}

fn without_slices(report: &Value) -> Value {
    let mut report = report.clone();
    if let Some(fields) = report.as_object_mut() {
        fields.remove("slices");
    }
    report
}

/// tessera's slices, with what the layout says where tessera says nothing.
fn slices(scenario: &Scenario<'_>, report: Option<&Value>) -> Vec<Value> {
    let reported = report.and_then(|report| report.get("slices")).and_then(Value::as_array);
    let mut next = 0;
    let places = scenario.addresses().into_iter().zip(scenario.layout.vcpus());
    places
        .enumerate()
        .map(|(index, (address, vcpus))| {
            let known = reported.and_then(|slices| of(slices, index)).and_then(Value::as_object);
            let mut slice = known.cloned().unwrap_or_default();
            slice.insert("address".to_owned(), address.to_string().into());
            slice.entry("host").or_insert_with(|| address.to_string().into());
            let own: Vec<_> = (next..next + vcpus).collect();
            next += vcpus;
            let has_left = reported.is_some() && known.is_none();
            let (own, memory) = if has_left { (Vec::new(), 0) } else { (own, scenario.share()) };
            slice.entry("vcpus").or_insert_with(|| own.into());
            slice.entry("memory_mib").or_insert_with(|| memory.into());
            Value::Object(slice)
        })
        .collect()
}

/// What is reported of a slice; nothing of one that has left before the end.
fn of(reported: &[Value], slice: usize) -> Option<&Value> {
    reported.iter().find(|of| of["slice"].as_u64() == u64::try_from(slice).ok())
}

/// A row for each slice.
pub(crate) fn slices_table(scenario: &Scenario<'_>, report: Option<&Value>) -> String {
    let row = |(number, slice): (usize, &Value)| {
        let at = |path: &str| show(slice.pointer(path));
        vec![
            number.to_string(),
            format!("{} ({})", at("/host"), at("/address")),
            at("/vcpus"),
            at("/memory_mib"),
            format!("{}/{}/{}", at("/faults/read"), at("/faults/write"), at("/faults/upgrade")),
            at("/faults_by_class/kernel_page_table"),
            format!("{}/{}", at("/pages_in"), at("/pages_out")),
            format!("{}/{}", at("/interrupts_in"), at("/interrupts_out")),
            at("/clock_skew_ns"),
        ]
    };
    let rows: Vec<_> = slices(scenario, report).iter().enumerate().map(row).collect();
    let mut text = table::text(&COLUMNS, &rows, COLUMNS.len());
    if let Some(classes) = report.and_then(Classes::of) {
        text.push_str(&classes.line());
    }
    text.push_str(&report.and_then(moves_line).unwrap_or_default());
    text
}

/// How contents of pages travelled, over all slices. None of a tessera that does not tell.
fn moves_line(report: &Value) -> Option<String> {
    let slices = report.get("slices")?.as_array()?;
    let sum = |name: &str| {
        let of = |slice: &Value| slice.pointer("/page_moves")?.get(name)?.as_u64();
        slices.iter().map(of).sum::<Option<u64>>()
    };
    let (copies, written) = (sum("copies")?, sum("remote_writes_out")?);
    Some(format!(
        "page contents: {copies} copies by processors, {written} pages written by adapters\n"
    ))
}

/// The closing table.
pub(crate) fn table(scenario: &Scenario<'_>, outcome: &Outcome) -> String {
    let mut text = slices_table(scenario, outcome.report.as_ref());
    text.push_str(&guest_lines(&outcome.guest));
    if let Some(seconds) = outcome.boot_seconds {
        text.push_str(&format!("boot: {seconds:.1} s, whole run: {:.1} s\n", outcome.seconds));
    }
    for problem in &outcome.problems {
        text.push_str(&format!("problem: {problem}\n"));
    }
    text
}

fn guest_lines(guest: &GuestReport) -> String {
    let number = |value: Option<u32>| value.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let nodes: Vec<_> =
        guest.nodes.iter().map(|(cpu, node)| format!("cpu {cpu} on node {node}")).collect();
    let passed = guest.tests.values().filter(|(verdict, _)| *verdict == Verdict::Pass).count();
    let skipped = guest.tests.values().filter(|(_, detail)| detail.starts_with("skip")).count();
    format!(
        "guest: {} CPUs online, {} NUMA nodes ({})\ntests: {passed} of {} passed ({skipped} of \
         them skipped); kernel warnings: {}\n",
        number(guest.cpus_online),
        number(guest.numa_nodes),
        nodes.join(", "),
        guest.tests.len(),
        number(guest.kernel_warnings),
    )
}

fn show(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.is_empty() => "none".to_owned(),
        Some(Value::Array(items)) => {
            items.iter().map(|item| show(Some(item))).collect::<Vec<_>>().join(",")
        }
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_remote_writes_of_all_slices_are_added() {
        let moves = |copies: u64, out: u64| serde_json::json!({"page_moves": {"copies": copies, "remote_writes_out": out, "remote_writes_in": 1}});
        let report = serde_json::json!({"slices": [moves(2, 30), moves(3, 40)]});

        let line = moves_line(&report).unwrap();

        assert_eq!(line, "page contents: 5 copies by processors, 70 pages written by adapters\n");
        assert_eq!(moves_line(&serde_json::json!({"slices": [{}]})), None);
    }

    #[test]
    fn slices_are_known_by_their_numbers_when_one_has_left() {
        let reported = [json!({"slice": 0}), json!({"slice": 2})];
        assert_eq!([0, 1, 2].map(|slice| of(&reported, slice).is_some()), [true, false, true]);
    }

    #[test]
    fn missing_value_is_a_dash() {
        assert_eq!(show(json!({"a": 1}).pointer("/b")), "-");
        assert_eq!(show(json!({"a": 1}).pointer("/a")), "1");
        assert_eq!(show(Some(&json!([1, 2]))), "1,2");
    }
}
