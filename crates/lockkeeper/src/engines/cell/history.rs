//! Converts the wait graph from the wire to the library's type.

use lockkeeper_api::graph::{GraphArrow, WaitGraph};

use crate::history::Blocked;

pub(super) fn blocked(graph: WaitGraph) -> Vec<Blocked> {
    let points = graph.points;
    let name = |place: u32| match points.get(place as usize) {
        Some(point) if point.owner.is_empty() => format!("session {}", point.session),
        Some(point) => point.owner.clone(),
        None => String::new(),
    };
    let ring = |place: u32| points.get(place as usize).map_or(0, |point| point.ring);
    let arrow = |arrow: GraphArrow| Blocked {
        waiter: name(arrow.from),
        holder: name(arrow.to),
        waited: arrow.waited,
        in_ring: ring(arrow.from) > 0 && ring(arrow.from) == ring(arrow.to),
        lock: arrow.lock,
    };
    graph.arrows.into_iter().map(arrow).collect()
}
