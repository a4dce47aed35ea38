//! Reads the gauges for a scrape of the metrics.

use crate::api::Api;
use crate::metrics::Reading;

impl Api {
    /// Returns the metrics as text.
    pub async fn metrics(&self) -> String {
        let disk = self.disk_watch().usage().await;
        let shared = self.shared();
        let reading = {
            let view = self.local_view();
            let now = shared.leader_term.now().unwrap_or(view.now);
            Reading {
                counts: view.table.counts(),
                last_token: view.table.last_token(),
                oldest_wait_ms: view.table.oldest_wait_ms(now),
                oldest_hold_ms: view.table.longest_held(now, 1).0.first().map_or(0, |held| held.held_ms),
                history_events: view.table.history_len() as u64,
                state_bytes: view.table.state_bytes(),
                state_bytes_max: view.table.state_bytes_max(),
                ..Reading::default()
            }
        };
        shared.metrics.text(&Reading {
            queued: shared.queue.queued() as u64,
            refuses_new: shared.queue.trouble().is_some(),
            watchers: shared.console_seats.taken() as u64,
            leads: shared.leader_term.term().is_some(),
            raft: self.consensus().status(),
            table_differs: self.consensus().stopped_by_disagreement().is_some(),
            disk,
            uptime_ms: shared.started.elapsed().as_millis() as u64,
            ..reading
        })
    }
}
