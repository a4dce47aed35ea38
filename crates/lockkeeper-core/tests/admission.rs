//! The rule of admission alone decides like the lock table: engines on other servers rely on it.
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use lockkeeper_core::admission::{self, Demand};
use lockkeeper_core::{Acquire, Batch, CellTime, Command, LockTable, Locks, Mode, SessionId, Wait};
use proptest::prelude::*;

/// The mode and the permits of each request, in order. All of them name the same capacity.
fn requests(capacity: u32) -> impl Strategy<Value = Vec<(Mode, Option<u32>)>> {
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
    let permits = match capacity {
        1 => Just(None).boxed(),
        most => (1..=most).prop_map(Some).boxed(),
    };
    prop::collection::vec((mode, permits), 1..12)
}

fn check(capacity: u32, requests: &[(Mode, Option<u32>)]) {
    let mut table = LockTable::new();
    let open = |number: u64| Command::OpenSession {
        session: SessionId(number.into()),
        ttl_ms: 10_000,
        owner: "test".into(),
        identity: None,
    };
    let named = (capacity > 1).then_some(capacity);
    let mut queue = Vec::new();
    for (number, (mode, permits)) in (1..).zip(requests) {
        let acquire = Acquire {
            mode: *mode,
            permits: *permits,
            capacity: named,
            wait: Wait::Forever,
            request: Some("only".into()),
            ..Acquire::new(SessionId(number.into()), Locks::One("lock".into()))
        };
        let commands = vec![open(number), Command::Acquire(acquire)];
        let applied = table.apply(number, &Batch { now: CellTime(0), utc_ms: 0, commands }).unwrap();
        assert!(applied.answers.iter().all(Result::is_ok), "{:?}", applied.answers);
        let demand = Demand::of(*mode, *permits, named, None).unwrap();
        let view = table.lock_view(&"lock".into(), CellTime(0), 100);
        let was_admitted = demand.is_admitted_behind(queue.iter().copied()).unwrap();
        queue.push(demand);
        assert_eq!(view.holders.len(), admission::holders(queue.iter().copied()), "{queue:?}");
        assert_eq!(was_admitted, view.holders.len() == queue.len(), "{queue:?}");
    }
}

proptest! {
    #[test]
    fn rule_agrees_with_the_table(
        (capacity, requests) in (1..5_u32).prop_flat_map(|capacity| (Just(capacity), requests(capacity)))
    ) {
        check(capacity, &requests);
    }
}
