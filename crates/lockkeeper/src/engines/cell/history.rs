//! What happened, from the wire to the library's own types.

use std::time::Duration;

use lockkeeper_api::v1;

use crate::history::{AuditAct, Blocked, Contended, LockEvent, LongHeld, Spread, Top};

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn events(history: v1::LockHistory) -> Vec<LockEvent> {
    let event = |event: v1::LockEvent| LockEvent {
        what: event.what,
        ago: Duration::from_millis(event.ago_ms),
        utc_ms: event.utc_ms,
        token: event.token,
        mode: some(event.mode),
        owner: event.owner,
        session: event.session,
        waited: event.waited_ms.map(Duration::from_millis),
        held: event.held_ms.map(Duration::from_millis),
        reason: some(event.reason),
    };
    history.events.into_iter().map(event).collect()
}

pub(super) fn acts(audit: v1::Audit) -> Vec<AuditAct> {
    let act = |act: v1::AuditAct| AuditAct {
        number: act.number,
        what: act.what,
        ago: Duration::from_millis(act.ago_ms),
        utc_ms: act.utc_ms,
        lock: some(act.lock),
        reason: some(act.reason),
        released: act.released,
        last_token: act.last_token,
        members: some(act.members),
        by: some(act.by),
        change: some(act.change),
    };
    audit.acts.into_iter().map(act).collect()
}

fn spread(spread: Option<v1::Spread>) -> Spread {
    let spread = spread.unwrap_or_default();
    Spread {
        count: spread.count,
        p50: Duration::from_millis(spread.p50_ms),
        p99: Duration::from_millis(spread.p99_ms),
    }
}

pub(super) fn top(top: v1::Top) -> Top {
    let contended = top.contended.into_iter().map(|lock| Contended {
        lock: lock.lock,
        waiting: lock.waiting,
        waited: Duration::from_millis(lock.waited_ms),
        owner: lock.owner,
    });
    let longest_held = top.longest_held.into_iter().map(|held| LongHeld {
        lock: held.lock,
        held: Duration::from_millis(held.held_ms),
        token: held.token,
        owner: held.owner,
        waiting: held.waiting,
    });
    Top {
        contended: contended.collect(),
        longest_held: longest_held.collect(),
        sampled: top.sampled,
        waited: spread(top.waited),
        held: spread(top.held),
        granted: top.granted,
        lost: top.lost,
    }
}

pub(super) fn blocked(graph: v1::WaitGraph) -> Vec<Blocked> {
    let points = graph.points;
    let name = |place: u32| match points.get(place as usize) {
        Some(point) if point.owner.is_empty() => format!("session {}", point.session),
        Some(point) => point.owner.clone(),
        None => String::new(),
    };
    let ring = |place: u32| points.get(place as usize).map_or(0, |point| point.ring);
    let arrow = |arrow: v1::wait_graph::Arrow| Blocked {
        waiter: name(arrow.from),
        holder: name(arrow.to),
        waited: Duration::from_millis(arrow.waited_ms),
        in_ring: ring(arrow.from) > 0 && ring(arrow.from) == ring(arrow.to),
        lock: arrow.lock,
    };
    graph.arrows.into_iter().map(arrow).collect()
}
