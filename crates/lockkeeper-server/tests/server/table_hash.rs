//! Members whose lock tables differ (S13): the minority stops serving and reports it.
#![cfg(feature = "simulation")]

use std::time::{Duration, Instant};

use lockkeeper_api::Code;
use lockkeeper_core::{Acquire, Locks};
use lockkeeper_server::{Node, NodeConfig};

use crate::support::{LONG, PATIENT, addresses, find_leader, leader, put, start_cell, until};

/// Several times as long as an election takes.
const REFUSED_FOR: Duration = Duration::from_secs(4);

async fn cell(folder: &std::path::Path) -> Vec<Node> {
    start_cell(|id, config| NodeConfig {
        data_dir: Some(folder.join(id.to_string())),
        log: NodeConfig::durable("").log,
        ..config
    })
    .await
}

/// Writes through the current leader until the damaged node notices the difference.
async fn until_noticed(nodes: &[Node], damaged: usize) {
    until("the difference to be noticed", async || {
        if let Some(leader) = find_leader(nodes) {
            put(&nodes[leader], "k", 1).await;
        }
        nodes[damaged].api().status().disagreement.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn follower_with_a_different_table_stops_and_the_others_serve() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let leads = leader(&nodes).await;
    assert!(put(&nodes[leads], "k", 1).await);
    let damaged = (leads + 1) % 3;
    nodes[damaged].api().make_table_different();
    until_noticed(&nodes, damaged).await;
    let status = nodes[damaged].api().status();
    let found = status.disagreement.expect("it was noticed");
    assert_ne!(found.own_hash, found.other_hash);
    assert!(found.index > 0 && found.index <= status.applied_index + 1, "{found:?}");
    assert!(nodes[damaged].api().metrics().await.contains("lockkeeper_table_differs 1\n"), "its metric");
    assert!(
        nodes[leads].api().metrics().await.contains("lockkeeper_table_differs 0\n"),
        "the leader's metric"
    );
    let refused = nodes[damaged].api().ready().expect_err("it does not serve").to_string();
    assert!(refused.contains(&found.own_hash.to_string()), "{refused}");
    assert!(refused.contains(&found.other_hash.to_string()), "{refused}");
    // The others serve, and the leader reports the difference.
    let node = leader(&nodes).await;
    assert_ne!(node, damaged);
    until("a write", async || put(&nodes[node], "k", 1).await.then_some(())).await;
    let shown = until("the leader to show it", async || {
        let members = nodes[node].api().status().members;
        let member = members.into_iter().find(|member| member.node_id == damaged as u64 + 1)?;
        member.disagreement
    })
    .await;
    assert!(shown.index > 0 && shown.own_hash != shown.other_hash, "{shown:?}");
    if shown.index == found.index {
        assert_eq!((shown.own_hash, shown.other_hash), (found.other_hash, found.own_hash));
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn leader_with_a_different_table_stops_and_another_node_leads() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cell(folder.path()).await;
    let damaged = leader(&nodes).await;
    assert!(put(&nodes[damaged], "k", 1).await);
    nodes[damaged].api().make_table_different();
    until_noticed(&nodes, damaged).await;
    let next = leader(&nodes).await;
    assert_ne!(next, damaged);
    until("a write", async || put(&nodes[next], "k", 1).await.then_some(())).await;
    assert!(nodes[damaged].api().ready().is_err());
    for node in nodes {
        node.stop().await;
    }
}

/// Without a majority whose tables are known to be equal, nothing is granted: two nodes disagree and the third is down.
#[tokio::test(flavor = "current_thread")]
async fn nothing_is_granted_while_the_only_two_nodes_disagree() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = cell(folder.path()).await;
    let leads = leader(&nodes).await;
    assert!(put(&nodes[leads], "k", 1).await);
    nodes[(leads + 1) % 3].api().make_table_different();
    nodes.remove((leads + 2) % 3).stop().await;
    until("a node to report the difference", async || {
        if let Some(leader) = find_leader(&nodes) {
            put(&nodes[leader], "k", 1).await;
        }
        let statuses: Vec<_> = nodes.iter().map(|node| node.api().status()).collect();
        let mut members = statuses.iter().flat_map(|status| &status.members);
        let is_noticed = statuses.iter().any(|status| status.disagreement.is_some())
            || members.any(|member| member.disagreement.is_some());
        is_noticed.then_some(())
    })
    .await;
    until("no node to serve", async || find_leader(&nodes).is_none().then_some(())).await;
    // Longer than elections take: neither node starts serving again.
    let began = Instant::now();
    let mut refusals = 0;
    while began.elapsed() < REFUSED_FOR {
        for node in &nodes {
            let api = node.api();
            assert!(api.ready().is_err() || api.check_leads().is_err(), "a node serves");
            let opened =
                tokio::time::timeout(Duration::from_secs(1), api.open_session(10_000, "test".into()));
            assert!(!matches!(opened.await, Ok(Ok(_))), "a session was opened");
            let written = tokio::time::timeout(Duration::from_secs(1), put(node, "k", 1));
            assert!(!matches!(written.await, Ok(true)), "a value was written");
            refusals += 2;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{refusals} requests were refused");
    for node in nodes {
        node.stop().await;
    }
}

/// Number of commands between two snapshots. Larger than the number of commands until a difference is noticed.
const SNAPSHOT_EVERY: u64 = 50;

/// Waits until a node has written another snapshot.
async fn next_snapshot(nodes: &[Node], writes: usize) {
    let before = nodes[writes].api().status().snapshot_index;
    until("a snapshot", async || {
        if let Some(leader) = find_leader(nodes) {
            put(&nodes[leader], "k", 1).await;
        }
        (nodes[writes].api().status().snapshot_index > before).then_some(())
    })
    .await;
}

/// The log of a stopped node is right, so a restart rebuilds its table, but only from a snapshot that it took before.
#[tokio::test(flavor = "current_thread")]
async fn stopped_node_gives_no_backup_and_keeps_its_last_good_snapshot_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let members = addresses(1..=3).await;
    let config = |id: u64| NodeConfig {
        node_id: Some(id),
        listen: Some(members[&id].clone()),
        members: members.clone(),
        timing: PATIENT,
        commands_between_snapshots: SNAPSHOT_EVERY,
        entries_behind_snapshot: 5,
        ..NodeConfig::durable(folder.path().join(id.to_string()))
    };
    let mut nodes = Vec::new();
    for id in 1..=3 {
        nodes.push(Node::open(config(id)).await.unwrap());
    }
    let leads = leader(&nodes).await;
    let damaged = (leads + 1) % 3;
    next_snapshot(&nodes, damaged).await;
    nodes[damaged].api().make_table_different();
    until_noticed(&nodes, damaged).await;
    let last_good = nodes[damaged].api().status().snapshot_index;

    let refused = nodes[damaged].api().backup().await.err().expect("no backup of a wrong table");
    assert_eq!(refused.code(), Code::Unavailable);
    let found = nodes[damaged].api().status().disagreement.expect("it was noticed");
    for part in [found.own_hash.to_string(), found.other_hash.to_string(), "another node".to_owned()] {
        assert!(refused.to_string().contains(&part), "{refused}");
    }
    // Two more snapshots are due.
    for _ in 0..2 {
        next_snapshot(&nodes, leads).await;
    }
    until("the stopped node to store and apply everything", async || {
        let (of_leader, status) = (nodes[leads].api().status(), nodes[damaged].api().status());
        (status.applied_index >= of_leader.snapshot_index).then_some(())
    })
    .await;
    assert_eq!(nodes[damaged].api().status().snapshot_index, last_good, "it took a snapshot");
    assert!(nodes[leads].api().backup().await.is_ok(), "others give one");

    nodes.remove(damaged).stop().await;
    nodes.insert(damaged, Node::open(config(damaged as u64 + 1)).await.unwrap());
    until("the restarted node to follow", async || {
        let node = find_leader(&nodes)?;
        put(&nodes[node], "k", 1).await;
        (nodes[damaged].api().status().table_hash_index > found.index && nodes[damaged].api().role().is_ok())
            .then_some(())
    })
    .await;
    // Without further writes, because a follower learns of the last one a little later.
    until("the restarted node to have the same table", async || {
        let (of_leader, status) = (nodes[find_leader(&nodes)?].api().status(), nodes[damaged].api().status());
        (status.table_hash_index == of_leader.table_hash_index && status.table_hash == of_leader.table_hash)
            .then_some(())
    })
    .await;
    assert_eq!(nodes[damaged].api().status().disagreement, None);
    assert!(nodes[damaged].api().backup().await.is_ok(), "it gives a backup again");
    for node in nodes {
        node.stop().await;
    }
}

/// From the moment at which a leader knows of a difference, it grants nothing until a majority is known to agree.
#[tokio::test(flavor = "current_thread")]
async fn nothing_is_granted_after_a_difference_is_known() {
    /// Attempts after the difference is known.
    const ATTEMPTS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = cell(folder.path()).await;
    let leads = leader(&nodes).await;
    let (session, _) = nodes[leads].api().open_session(600_000, "test".into()).await.unwrap();
    nodes[(leads + 1) % 3].api().make_table_different();
    let removed = (leads + 2) % 3;
    nodes.remove(removed).stop().await;
    let node = &nodes[if removed < leads { leads - 1 } else { leads }];
    let is_known = || {
        let status = node.api().status();
        status.disagreement.is_some() || status.members.iter().any(|member| member.disagreement.is_some())
    };
    let (mut before, mut after) = (0, 0);
    let began = Instant::now();
    while after < ATTEMPTS {
        assert!(began.elapsed() < LONG, "the difference was not noticed");
        let was_known = is_known();
        let lock = Locks::One(format!("lock-{before}-{after}").into());
        let acquired = node.api().acquire(Acquire::new(session, lock));
        let granted = matches!(tokio::time::timeout(Duration::from_secs(1), acquired).await, Ok(Ok(_)));
        let renewed = matches!(node.api().keep_alive(session), Ok(Some(_)));
        match was_known {
            false => before += 1,
            true => {
                assert!(!granted, "granted although a difference was known, attempt {after}");
                assert!(!renewed, "renewed although a difference was known, attempt {after}");
                after += 1;
            }
        }
        tokio::task::yield_now().await;
    }
    println!("{before} attempts before the difference was known");
    for node in nodes {
        node.stop().await;
    }
}
