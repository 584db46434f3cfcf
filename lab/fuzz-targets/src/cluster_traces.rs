//! Traces of VMs for the simulator of clusters, in both forms of text: no panic; what is accepted makes sense, and is read again as it
//! is written.

use cluster_sim::import::{Trace, azure2017, jsonl};

fn check(trace: &Trace) {
    assert!(!trace.requests.is_empty());
    assert!(trace.requests.windows(2).all(|pair| pair[0].at <= pair[1].at));
    for it in &trace.requests {
        assert!(it.life > 0);
        it.spec.check().expect("reading checks");
    }
    let mut text = Vec::new();
    jsonl::write(&trace.requests, &mut text).expect("memory takes all");
    let again = jsonl::read(&text[..]).expect("what was written can be read");
    assert_eq!(again.requests.len(), trace.requests.len());
}

pub(crate) fn run(input: &[u8]) {
    if let Ok(trace) = jsonl::read(input) {
        check(&trace);
    }
    if let Ok(trace) = azure2017::read(input) {
        check(&trace);
    }
}
