//! The conformance suite: the same cases for all engines, against real servers that it starts (`./test` installs them).
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

mod acquire;
mod capabilities;
mod child;
mod connect_errors;
mod doctor;
mod exclusion;
mod faults;
mod herd;
mod leaks;
mod leases;
mod lost_answers;
mod names;
mod request_ids;
mod runtime;
mod servers;
mod sessions;
mod support;

/// All cases, for an engine with servers, whose connections can be cut and which can be killed.
macro_rules! with_servers {
    ($site:ty) => {
        #[test]
        fn processes_exclude_each_other() {
            crate::exclusion::processes_exclude_each_other::<$site>();
        }

        with_servers!($site, faults,
            paused_holder_loses_its_lock_and_cannot_release_its_successors
            partitioned_holder_detects_the_loss_before_the_lock_is_granted_again
            guard_is_renewed_or_lost_after_a_short_partition
            guard_is_not_held_if_a_restarted_server_grants_its_lock_again);
        with_servers!($site, connect_errors, error_names_the_address_of_an_unreachable_or_wrong_server);
        with_servers!($site, lost_answers, acquire_dropped_after_a_lost_answer_leaves_nothing_behind);
        for_every_engine!($site);
    };
    ($site:ty, $module:ident, $($case:ident)*) => { $(
        #[tokio::test]
        async fn $case() {
            crate::$module::$case::<$site>().await;
        }
    )* };
}

/// The cases for every engine, with servers or without.
macro_rules! for_every_engine {
    ($site:ty) => {
        with_servers!($site, acquire,
            lock_can_be_tried_waited_for_and_released
            acquire_dropped_at_any_await_leaves_nothing_behind);
        with_servers!($site, exclusion,
            tokens_increase_over_1000_grants_and_a_restart
            waiters_hold_the_lock_one_at_a_time_and_in_order_within_a_keeper);
        with_servers!($site, names, unusual_names_are_distinct_locks);
        with_servers!($site, request_ids, repeated_request_has_one_holder);
        with_servers!($site, capabilities,
            modes_match_the_capabilities
            who_and_force_release_match_the_capabilities
            elections_match_the_capabilities
            rate_limits_match_the_capabilities);
        with_servers!($site, leaks, ten_thousand_acquires_leave_nothing_behind);
        with_servers!($site, runtime,
            guard_dropped_on_a_thread_without_a_runtime_is_released
            acquire_dropped_on_a_thread_without_a_runtime_leaves_nothing_behind
            guard_has_a_fresh_lease_after_a_long_wait);
    };
}

macro_rules! suites {
    ($($engine:ident: $site:ty,)*) => { $(
        mod $engine {
            with_servers!($site);
        }
    )* };
}

servers::each_engine!(suites);

mod embedded {
    #[tokio::test]
    async fn keepers_exclude_each_other() {
        crate::exclusion::keepers_exclude_each_other::<crate::servers::embedded::Embedded>().await;
    }

    for_every_engine!(crate::servers::embedded::Embedded);
}

mod postgres_transactions {
    with_servers!(crate::servers::postgres::PostgresTransactions);
}

/// The engines whose queue is on the server.
mod herds {
    macro_rules! herd {
        ($($engine:ident: $site:ty,)*) => { $(
            mod $engine {
                with_servers!($site, herd, release_cost_is_independent_of_waiters);
            }
        )* };
    }

    herd! {
        cell: crate::servers::cell::Cell,
        postgres: crate::servers::postgres::Postgres,
        etcd: crate::servers::etcd::Etcd,
        zookeeper: crate::servers::zookeeper::Zookeeper,
    }
}
