//! One suite for all engines, against real servers that it starts by itself (`./test` installs them).
#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

mod cases;
mod child;
mod doctor;
mod herd;
mod lost_answers;
mod more_cases;
mod redlock_recipe;
mod refusals;
mod runtime_cases;
mod servers;
mod sessions;
mod special;
mod work_cases;

/// The cases that need a server which can be reached, cut off and killed.
macro_rules! with_servers {
    ($site:ty) => {
        #[test]
        fn sixteen_processes_exclude_each_other() {
            crate::cases::sixteen_processes_exclude_each_other::<$site>();
        }

        with_servers!($site, cases,
            a_holder_that_is_paused_loses_its_lock_and_cannot_release_that_of_the_next
            a_holder_that_is_cut_off_is_told_before_the_next_one_is_let_in
            a_connection_that_is_cut_and_healed_costs_no_lock_or_says_so
            a_server_that_is_killed_and_comes_back_lets_nobody_else_in_unnoticed);
        with_servers!($site, more_cases, a_server_that_is_absent_or_of_another_kind_is_told_in_plain_words);
        with_servers!($site, lost_answers, lost_answers_leave_no_ghost);
        everywhere!($site);
    };
    ($site:ty, $module:ident, $($case:ident)*) => { $(
        #[tokio::test]
        async fn $case() {
            crate::$module::$case::<$site>().await;
        }
    )* };
}

/// The cases for every engine.
macro_rules! everywhere {
    ($site:ty) => {
        with_servers!($site, cases,
            a_lock_is_tried_waited_for_and_given_back
            an_acquire_that_is_dropped_at_any_await_leaves_nothing_behind
            tokens_rise_over_a_thousand_grants_and_a_restart
            fifty_waiters_have_it_one_after_the_other);
        with_servers!($site, more_cases,
            names_of_every_kind_are_locks_of_their_own
            a_request_that_is_repeated_leaves_one_holder
            modes_work_or_are_refused_as_the_capabilities_say
            operators_see_and_free_a_lock_where_the_engine_can
            ten_thousand_locks_leave_nothing_behind);
        with_servers!($site, runtime_cases,
            a_guard_dropped_on_a_thread_without_a_runtime_is_released
            an_acquire_dropped_on_a_thread_without_a_runtime_leaves_nothing_behind
            a_guard_that_was_waited_for_has_a_fresh_lease);
        with_servers!($site, work_cases,
            an_election_is_held_or_refused_as_the_capabilities_say
            a_rate_is_shared_or_refused_as_the_capabilities_say);
    };
}

mod cell {
    with_servers!(crate::servers::cell::Cell);
    with_servers!(crate::servers::cell::Cell, herd, a_release_costs_the_same_however_many_wait);
}

mod embedded {
    #[tokio::test]
    async fn sixteen_keepers_exclude_each_other() {
        crate::cases::sixteen_keepers_exclude_each_other::<crate::servers::embedded::Embedded>().await;
    }

    everywhere!(crate::servers::embedded::Embedded);
}

mod redis {
    with_servers!(crate::servers::redis::Redis);
}

mod redlock {
    with_servers!(crate::servers::redlock::Redlock);
}

mod postgres {
    with_servers!(crate::servers::postgres::Postgres);
    with_servers!(crate::servers::postgres::Postgres, herd, a_release_costs_the_same_however_many_wait);
}

mod postgres_transactions {
    with_servers!(crate::servers::postgres::PostgresTransactions);
}

mod etcd {
    with_servers!(crate::servers::etcd::Etcd);
    with_servers!(crate::servers::etcd::Etcd, herd, a_release_costs_the_same_however_many_wait);
}

mod zookeeper {
    with_servers!(crate::servers::zookeeper::Zookeeper);
    with_servers!(crate::servers::zookeeper::Zookeeper, herd, a_release_costs_the_same_however_many_wait);
}

mod consul {
    with_servers!(crate::servers::consul::Consul);
}
