//! Texts of the corpus.

/// Heads of requests: a line with the method and the target, then one for each header.
pub(crate) const HEADS: [&str; 7] = [
    "GET /v1/locks\nhost:localhost:7420",
    "POST /lockkeeper.v1.Lockkeeper/ForceRelease\nhost:127.0.0.1:7420\ncontent-type:application/grpc\norigin:http://evil.example",
    "GET http://[::1]:7420/\nhost:[::1]:7420\nsec-fetch-site:cross-site\nsec-fetch-mode:navigate\nsec-fetch-dest:document",
    "GET /\nhost:EVIL.example.\nhost:evil.example",
    "POST /v1/lock/acquire\nhost:user@node1:7420\nsec-fetch-site:same-origin",
    "POST /v1/lock/acquire\nhost:node1:7420\norigin:http://node1:7420",
    "POST /v1/access/grant\nhost:LocalHost.\norigin:null",
];

/// Bodies and queries of all calls, and credentials.
pub(crate) const HTTP: [&str; 33] = [
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "lock": "a", "mode": "shared", "permits": 2, "capacity": 3, "wait_ms": 10, "wait_forever": false, "request": 7, "lock_delay_ms": 5, "scope": "s", "policy": "wound_wait"}"#,
    r#"{"session": "s", "locks": ["a", "b"], "request": "r"}"#,
    r#"{"session": "s", "lock": "a", "token": 9007199254740991}"#,
    r#"{"ttl_ms": 10000, "owner": "caf\u00e9"}"#,
    r#"{"key": "k", "value": "v", "fence": {"lock": "a", "token": 1}, "if_version": 0}"#,
    r#"{"key": "k", "value_base64": "AAEC/w=="}"#,
    r#"{"session": "s", "election": "e", "value": "v", "epoch": 1, "to": "w"}"#,
    r#"{"limiter": "l", "permits": 1, "rate_per_s": 0.5, "burst": 10}"#,
    r#"{"sequencer": "lk1:42:x:orders/4472"}"#,
    r#"{"identity": "ci", "prefix": "builds/", "rights": ["acquire", "admin"]}"#,
    r#"{"namespace": "builds", "locks": 1, "requests_per_s": 2}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f"}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "lock": "a", "token": 42}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "locks": ["a", "b"], "request": "r"}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "request": "r"}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "election": "e", "value": "v", "wait_ms": 10}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "election": "e", "epoch": 1}"#,
    r#"{"session": "000102030405060708090a0b0c0d0e0f", "election": "e", "epoch": 1, "to": "w"}"#,
    r#"{"lock": "a", "reason": "why"}"#,
    r#"{"key": "k", "fence": {"lock": "a", "token": 1}, "if_version": 3}"#,
    r#"{"identity": "ci"}"#,
    r#"{"identity": "ci", "prefix": "builds/"}"#,
    r#"{"id": "0a"}"#,
    r#"{"node_id": 4, "address": "node4:7420"}"#,
    r#"{"node_id": 4}"#,
    "prefix=a%2Fb&limit=10&after=%C3%A9",
    "name=a&limit=3",
    "key=k",
    "owner=o&after=00010203&limit=3",
    "limit=3",
    "name=a",
    "Bearer lk_0123456789ab_00",
    "AAEC/w==",
];
