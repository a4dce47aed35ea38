//! Connections and elections among members. No counter rises in an idle cell.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabel {
    member: u64,
}

/// Connections and elections among members.
#[derive(Debug, Clone, Default)]
pub struct MemberCounters {
    /// Connections that this node has opened to other members.
    pub opened: Counter,
    /// Connections of other members that this node has accepted.
    pub accepted: Counter,
    /// Elections that this node started because the leader's connection ended, or the leader was silent or said goodbye.
    pub attempts: Counter,
    /// Pre-votes that this node has requested, for any reason.
    pub pre_votes: Counter,
    /// How long the leader has paused before entries because a follower lags.
    pub proposal_pause_seconds: Counter<f64, AtomicU64>,
    message_format: Family<MemberLabel, Gauge>,
}

impl MemberCounters {
    /// Records the format of messages to a member.
    pub fn set_message_format(&self, member: u64, format: u32) {
        self.message_format.get_or_create(&MemberLabel { member }).set(format.into());
    }

    pub(super) fn register(&self, r: &mut Registry) {
        r.register("member_connections_opened", "Connections opened to other members", self.opened.clone());
        r.register(
            "member_connections_accepted",
            "Connections accepted from other members",
            self.accepted.clone(),
        );
        r.register(
            "elections_triggered",
            "Elections started because the leader's connection ended, or the leader was silent or said goodbye",
            self.attempts.clone(),
        );
        r.register("pre_votes_requested", "Pre-votes requested from other members", self.pre_votes.clone());
        r.register(
            "proposal_pause_seconds",
            "How long the leader has paused before entries because a follower lags",
            self.proposal_pause_seconds.clone(),
        );
        r.register(
            "member_message_format",
            "Format of messages to another member, once it has answered",
            self.message_format.clone(),
        );
    }
}
