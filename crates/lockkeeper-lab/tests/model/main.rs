//! Model checking of sessions, leases and fail-over: visits every state of a small instance. See docs/model.md.

mod protocol;
mod state;
mod steps;

use std::time::Instant;

use protocol::{Protocol, TTL};
use stateright::{Checker, HasDiscoveries, Model};
use steps::{NO_STALE_EXPIRY, ONE_HOLDER, TOKENS_RISE};

/// Visits every state: `always` properties must hold, and `sometimes` properties must be reached.
fn assert_holds(name: &str, protocol: Protocol) {
    let began = Instant::now();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: all {} states, {} steps, depth {}, in {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    checker.assert_properties();
}

/// With one rule switched off, the property must be violated: otherwise the model does not test the rule.
fn assert_violation(name: &str, protocol: Protocol, property: &'static str) {
    let began = Instant::now();
    let first = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(2).finish_when(first).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: none of {} states violates: {property}", checker.unique_state_count())
    };
    let states = checker.unique_state_count();
    println!("{name}: violated after {states} states, in {:.1?}: {property}", began.elapsed());
    for (number, step) in path.into_actions().into_iter().enumerate() {
        println!("  {:>2}. {step:?}", number + 1);
    }
}

#[test]
fn one_holder_through_one_failover() {
    assert_holds("the protocol, one fail-over", Protocol::correct());
}

#[test]
fn one_holder_through_two_failovers() {
    assert_holds("the protocol, two fail-overs", Protocol { terms_max: 3, ..Protocol::correct() });
}

#[test]
fn one_holder_through_node_restarts() {
    assert_holds("the protocol, restarts", Protocol { restarts: true, ..Protocol::correct() });
}

#[test]
fn missing_quorum_lease_allows_two_holders() {
    assert_violation("no quorum lease", Protocol { quorum_lease: false, ..Protocol::correct() }, ONE_HOLDER);
}

#[test]
fn no_ttl_from_a_new_leader_allows_two_holders() {
    assert_violation(
        "no TTL from a new leader",
        Protocol { ttl_from_new_leader: 0, ..Protocol::correct() },
        ONE_HOLDER,
    );
}

#[test]
fn half_a_ttl_from_a_new_leader_allows_two_holders() {
    assert_violation(
        "half a TTL from a new leader",
        Protocol { ttl_from_new_leader: TTL / 2, ..Protocol::correct() },
        ONE_HOLDER,
    );
}

#[test]
fn missing_version_in_the_expiry_ends_a_renewed_session() {
    assert_violation(
        "no version",
        Protocol { version_checked: false, ..Protocol::correct() },
        NO_STALE_EXPIRY,
    );
}

#[test]
fn expiry_of_a_former_term_allows_two_holders() {
    let protocol = Protocol { terms_max: 3, queue_ends_with_term: false, ..Protocol::correct() };
    assert_violation("an expiry of a former term", protocol, ONE_HOLDER);
}

#[test]
fn deadline_from_the_answer_allows_two_holders() {
    assert_violation(
        "deadline from the answer",
        Protocol { deadline_from_sending: false, ..Protocol::correct() },
        ONE_HOLDER,
    );
}

#[test]
fn missing_client_drift_allows_two_holders() {
    assert_violation("no drift", Protocol { client_drift: 0, ..Protocol::correct() }, ONE_HOLDER);
}

#[test]
fn forgotten_promise_allows_two_holders() {
    let protocol = Protocol { restarts: true, promise_survives_restart: false, ..Protocol::correct() };
    assert_violation("a forgotten promise", protocol, ONE_HOLDER);
}

#[test]
fn tokens_counted_by_each_leader_go_back() {
    assert_violation(
        "tokens by leader",
        Protocol { tokens_in_log: false, ..Protocol::correct() },
        TOKENS_RISE,
    );
}
