//! The protocol of sessions, leases and fail-over at small size, every state of it: see docs/model.md.

mod protocol;
mod state;
mod steps;

use std::time::Instant;

use protocol::{Protocol, TTL};
use stateright::{Checker, HasDiscoveries, Model};
use steps::{HEARD_OF, ONE_HOLDER, TOKENS_RISE};

/// Visits every state: each property must hold, and what should be possible must have happened.
fn holds(name: &str, protocol: Protocol) {
    let began = Instant::now();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: all {} states, {} steps, at most {} deep, in {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    checker.assert_properties();
}

/// With one rule taken out, the property must be broken: otherwise the model would not see what the rule is for.
fn breaks(name: &str, protocol: Protocol, property: &'static str) {
    let began = Instant::now();
    let first = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(2).finish_when(first).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: {} states, and not one breaks: {property}", checker.unique_state_count())
    };
    let states = checker.unique_state_count();
    println!("{name}: broken after {states} states, in {:.1?}: {property}", began.elapsed());
    for (number, step) in path.into_actions().into_iter().enumerate() {
        println!("  {:>2}. {step:?}", number + 1);
    }
}

#[test]
fn one_holder_through_a_fail_over() {
    holds("the protocol, one fail-over", Protocol::whole());
}

#[test]
fn one_holder_through_two_fail_overs() {
    holds("the protocol, two fail-overs", Protocol { terms_max: 3, ..Protocol::whole() });
}

#[test]
fn one_holder_with_nodes_that_are_started_anew() {
    holds("the protocol, restarts", Protocol { restarts: true, ..Protocol::whole() });
}

#[test]
fn without_the_quorum_lease_two_hold() {
    breaks("no quorum lease", Protocol { quorum_lease: false, ..Protocol::whole() }, ONE_HOLDER);
}

#[test]
fn when_a_new_leader_gives_no_time_two_hold() {
    breaks("no time from a new leader", Protocol { given_by_new_leader: 0, ..Protocol::whole() }, ONE_HOLDER);
}

#[test]
fn when_a_new_leader_gives_only_a_rest_two_hold() {
    breaks(
        "a rest from a new leader",
        Protocol { given_by_new_leader: TTL / 2, ..Protocol::whole() },
        ONE_HOLDER,
    );
}

#[test]
fn without_a_version_in_the_expiry_a_session_that_was_heard_of_ends() {
    breaks("no version", Protocol { version_checked: false, ..Protocol::whole() }, HEARD_OF);
}

#[test]
fn when_an_expiry_outlives_the_office_it_was_decided_in_two_hold() {
    let protocol = Protocol { terms_max: 3, queue_ends_with_office: false, ..Protocol::whole() };
    breaks("an expiry of a former office", protocol, ONE_HOLDER);
}

#[test]
fn when_a_client_counts_from_the_answer_two_hold() {
    breaks(
        "counted from the answer",
        Protocol { counted_from_sending: false, ..Protocol::whole() },
        ONE_HOLDER,
    );
}

#[test]
fn when_a_client_leaves_out_the_drift_two_hold() {
    breaks("no drift", Protocol { client_drift: 0, ..Protocol::whole() }, ONE_HOLDER);
}

#[test]
fn when_a_node_forgets_its_promise_two_hold() {
    let protocol = Protocol { restarts: true, promise_outlives_restart: false, ..Protocol::whole() };
    breaks("a forgotten promise", protocol, ONE_HOLDER);
}

#[test]
fn when_each_leader_counts_tokens_they_go_back() {
    breaks("tokens by leader", Protocol { tokens_in_log: false, ..Protocol::whole() }, TOKENS_RISE);
}
