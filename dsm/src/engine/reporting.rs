//! The counters of an engine and of all that it owns, gathered.

use super::event_loop::Engine;
use crate::memory::DeviceUse;
use crate::observe::{FaultCounts, HomeCounts, PagesFrom, Report};
use wire::SliceId;

impl Engine {
    pub(crate) fn report(&self) -> Report {
        let stats = self.node.stats();
        let of_devices = |what| self.store.ram.device_pages(what);
        let (device_pages, device_page_moves) = of_devices(DeviceUse::Data);
        let (device_frame_pages, device_frame_page_moves) = of_devices(DeviceUse::Frame);
        Report {
            without: self.node.mechanisms().left_out().map(str::to_owned).collect(),
            device_pages,
            device_page_moves,
            device_frame_pages,
            device_frame_page_moves,
            page_moves: self.outbound.moved,
            faults: FaultCounts {
                read: stats.faults_read,
                write: stats.faults_write,
                upgrade: stats.faults_upgrade,
            },
            faults_by_class: self.trace.classes(),
            faults_local: stats.faults_local,
            waited_us: stats.waited_ns / 1000,
            held_us: stats.held_ns / 1000,
            prefetches: stats.prefetches,
            correlated_requests: self.prefetcher.correlated_requests,
            worker_faults_probed: self.workers.probed,
            worker_faults_guessed: self.workers.guessed,
            writes_predicted: self.store.write_prediction.predicted,
            writes_predicted_in_vain: self.store.write_prediction.in_vain,
            pages_in: stats.pages_in,
            pages_from: stats.pages_from.iter().map(pages_from).collect(),
            pages_out: stats.pages_out,
            invalidations: stats.invalidations,
            deferrals: stats.deferrals,
            messages_out: stats.messages_out,
            epoch_refused: stats.epoch_refused,
            replica_pages: stats.replicas.pages,
            replica_conversions: stats.replicas.conversions,
            replica_demotions: stats.replicas.demotions,
            replica_flushes: stats.replicas.flushes,
            replica_diffs: stats.replicas.diffs,
            replica_entries_out: stats.replicas.entries_out,
            replica_entries_in: stats.replicas.entries_in,
            replica_conflicts: stats.replicas.conflicts,
            hold_window_ns: self.node.hold_window_ns(),
            hot_pages: self.trace.hottest(),
            hot_tables: self.trace.hottest_tables(),
            chunks: self.store.chunk_counts(),
            homes: HomeCounts {
                moves: self.home_moves.heard,
                pages_in: stats.homes_in,
                pages_out: stats.homes_out,
                requests_passed_on: stats.home_requests_passed,
                pages_pulled: stats.pulled,
            },
        }
    }
}

fn pages_from((slice, pages): (&SliceId, &u64)) -> PagesFrom {
    PagesFrom { slice: slice.0, pages: *pages }
}
