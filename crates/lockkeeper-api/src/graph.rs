//! The wait graph.

use std::time::Duration;

use lockkeeper_core::{Refusal, graph};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Request, lock_name};
use crate::v1;
use crate::wire::{answers, mirror};

/// The wait graph: which sessions wait for which others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitGraph {
    /// The sessions.
    pub points: Vec<GraphPoint>,
    /// From a waiting session to one that blocks it, as indexes of `points`.
    pub arrows: Vec<GraphArrow>,
    /// The longest path along edges, as indexes of `points`.
    pub longest_chain: Vec<u32>,
    /// The number of cycles: groups of sessions that wait for each other.
    pub rings: u32,
    /// The number of waiting requests in the whole cell.
    pub waiting: u64,
    /// Whether some waits were omitted.
    pub sampled: bool,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphPoint {
    /// The first eight digits of its id.
    pub session: String,
    /// Its owner.
    pub owner: String,
    /// The number of grants it holds.
    pub holds: u32,
    /// The number of the cycle that it belongs to; 0 if none.
    pub ring: u32,
}

/// An edge from a waiting session to one that blocks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphArrow {
    /// Index of the waiting session.
    pub from: u32,
    /// Index of the blocking session.
    pub to: u32,
    /// The lock.
    pub lock: String,
    /// How long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "crate::ms::serialize")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub waited: Duration,
}

mirror!(WaitGraph = v1::WaitGraph { points, arrows, longest_chain, rings, waiting, sampled });
mirror!(GraphPoint = v1::wait_graph::Point { session, owner, holds, ring });
mirror!(GraphArrow = v1::wait_graph::Arrow { from, to, lock; waited = waited_ms });

impl WaitGraph {
    /// Converts a graph of the lock table, adding the number of all waiting requests.
    pub fn new(graph: graph::WaitGraph, waiting: u64) -> WaitGraph {
        let point = |point: graph::Node| GraphPoint {
            session: point.session.to_string(),
            owner: point.owner.into(),
            holds: point.holds,
            ring: point.cycle as u32,
        };
        let arrow = |arrow: graph::Edge| GraphArrow {
            from: arrow.from as u32,
            to: arrow.to as u32,
            lock: arrow.lock.into(),
            waited: Duration::from_millis(arrow.waited_ms),
        };
        WaitGraph {
            points: graph.nodes.into_iter().map(point).collect(),
            arrows: graph.edges.into_iter().map(arrow).collect(),
            longest_chain: graph.longest_chain.into_iter().map(|place| place as u32).collect(),
            rings: graph.cycles as u32,
            waiting,
            sampled: graph.sampled,
        }
    }
}

/// Request for the wait graph.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetGraph {
    /// Only the waits for this lock, and what its holders wait for in turn.
    pub name: String,
}

fn graph(lock: String) -> Result<Request, Refusal> {
    let lock = (!lock.is_empty()).then(|| lock_name(lock)).transpose()?;
    Ok(Request::Graph(lock))
}

impl Call for GetGraph {
    type Answer = WaitGraph;

    fn into_request(self) -> Result<Request, Refusal> {
        graph(self.name)
    }
}

impl TryFrom<v1::GetWaitGraphRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GetWaitGraphRequest) -> Result<Request, Refusal> {
        graph(request.lock)
    }
}

answers! {
    Answer::Graph(graph) => WaitGraph as graph;
    Answer::Graph(graph) => v1::WaitGraph as graph.into();
}
