//! Who waits for whom.

use lockkeeper_api::v1;
use lockkeeper_core::LockName;
use lockkeeper_core::graph::WaitGraph;
use serde::Serialize;

use super::Look;
use crate::failure::Failure;

/// Who waits for whom.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    /// The sessions.
    pub points: Vec<Point>,
    /// From one that waits to one that is in its way, by their places in `points`.
    pub arrows: Vec<Arrow>,
    /// The longest way along arrows, as places in `points`.
    pub longest_chain: Vec<usize>,
    /// How many rings there are.
    pub rings: usize,
    /// How many requests wait in the whole cell.
    pub waiting: u64,
    /// Some waits were left out.
    pub sampled: bool,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The beginning of its id.
    pub session: String,
    /// Who it is.
    pub owner: String,
    /// How many grants it holds.
    pub holds: u32,
    /// The ring that it is part of; 0 if none.
    pub ring: usize,
}

/// One session in the way of another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Arrow {
    /// Who waits.
    pub from: usize,
    /// For whom.
    pub to: usize,
    /// For which lock.
    pub lock: String,
    /// For how long.
    pub waited_ms: u64,
}

impl Look<'_> {
    /// For one lock and what its holders wait for in turn, or for the whole cell.
    pub fn graph(&self, lock: Option<&str>) -> Result<Graph, Failure> {
        let lock = match lock {
            Some(lock) => {
                lockkeeper_core::limits::check_name("name of the lock", lock)?;
                Some(LockName::from(lock))
            }
            None => None,
        };
        let WaitGraph { points, arrows, longest_chain, rings, sampled } =
            self.table.wait_graph(lock.as_ref(), self.now);
        Ok(Graph {
            points: points
                .into_iter()
                .map(|point| Point {
                    session: point.session.to_string(),
                    owner: point.owner.to_string(),
                    holds: point.holds,
                    ring: point.ring,
                })
                .collect(),
            arrows: arrows
                .into_iter()
                .map(|arrow| Arrow {
                    from: arrow.from,
                    to: arrow.to,
                    lock: arrow.lock.to_string(),
                    waited_ms: arrow.waited_ms,
                })
                .collect(),
            longest_chain,
            rings,
            waiting: self.table.counts().waiting,
            sampled,
        })
    }
}

impl From<Graph> for v1::WaitGraph {
    fn from(graph: Graph) -> v1::WaitGraph {
        let points = graph.points.into_iter().map(|point| v1::wait_graph::Point {
            session: point.session,
            owner: point.owner,
            holds: point.holds,
            ring: point.ring as u32,
        });
        let arrows = graph.arrows.into_iter().map(|arrow| v1::wait_graph::Arrow {
            from: arrow.from as u32,
            to: arrow.to as u32,
            lock: arrow.lock,
            waited_ms: arrow.waited_ms,
        });
        v1::WaitGraph {
            points: points.collect(),
            arrows: arrows.collect(),
            longest_chain: graph.longest_chain.into_iter().map(|place| place as u32).collect(),
            rings: graph.rings as u32,
            waiting: graph.waiting,
            sampled: graph.sampled,
        }
    }
}
