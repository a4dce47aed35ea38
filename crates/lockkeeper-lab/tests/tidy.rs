//! Project rules that the compiler does not check.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

/// All files below a folder, except build output and hidden folders.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if name.starts_with('.')
            || ["target", "node_modules", "lockkeeper-data", "generated"].contains(&name.as_str())
        {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn sources(ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), &mut found);
    let sources: Vec<_> = found
        .into_iter()
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .map(|path| (path.clone(), fs::read_to_string(&path).expect("text")))
        .collect();
    assert!(!sources.is_empty(), "there are no .{ending} files: is this the workspace?");
    sources
}

#[test]
fn no_file_exceeds_600_lines() {
    let long: Vec<_> = sources("rs")
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 600)
        .collect();
    assert!(long.is_empty(), "split these: {long:?}");
}

/// Allowed unbounded channels, and what bounds them instead.
const UNBOUNDED_ALLOWED: &[(&str, &str)] = &[(
    "crates/lockkeeper/src/engines/cell/mod.rs",
    "a guard is dropped without waiting; there are at most as many releases as guards and requests",
)];

#[test]
fn every_channel_has_a_bound() {
    let word = concat!("unbounded", "_channel");
    let found: Vec<_> = sources("rs")
        .into_iter()
        .filter(|(path, text)| {
            text.contains(word) && !UNBOUNDED_ALLOWED.iter().any(|(known, _)| path.ends_with(known))
        })
        .map(|(path, _)| path)
        .collect();
    assert!(found.is_empty(), "every queue has a bound (S11): {found:?}");
}

#[test]
fn openraft_is_used_only_in_raft() {
    let raft = root().join("crates/lockkeeper-server/src/raft");
    let found: Vec<_> = sources("rs")
        .into_iter()
        .filter(|(path, text)| {
            path.starts_with(root().join("crates"))
                && path.components().any(|part| part.as_os_str() == "src")
                && !path.starts_with(&raft)
                && text
                    .lines()
                    .any(|line| !line.trim_start().starts_with("//") && line.contains("openraft::"))
        })
        .map(|(path, _)| path)
        .collect();
    assert!(found.is_empty(), "openraft is named outside raft/: {found:?}");
}

/// Consensus does not use the layers above it. Its unit tests may.
#[test]
fn raft_does_not_use_the_layers_above_it() {
    let raft = root().join("crates/lockkeeper-server/src/raft");
    let above = ["listen", "api", "session", "shared", "effects", "propose", "leader"];
    let mut found = Vec::new();
    for (path, text) in sources("rs").into_iter().filter(|(path, _)| path.starts_with(&raft)) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (_, used) in code.match_indices("crate::").map(|(at, word)| code.split_at(at + word.len())) {
            let end = used.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(used.len());
            // A group is written as one line for each module.
            if above.contains(&&used[..end]) || end == 0 {
                found.push((path.clone(), used.lines().next().unwrap_or_default().to_owned()));
            }
        }
    }
    assert!(found.is_empty(), "raft/ must not use what calls it: {found:?}");
}

#[test]
fn links_between_documents_resolve() {
    let mut dead = Vec::new();
    for (path, text) in sources("md") {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !path.parent().expect("a folder").join(target).exists() {
                dead.push((path.clone(), link.to_owned()));
            }
        }
        // Paths in plain text.
        for word in text.split(|c: char| c.is_whitespace() || "()`,;".contains(c)) {
            let word = word.trim_end_matches(['.', ':']);
            let named = word.starts_with("docs/") && word.ends_with(".md");
            if named && !root().join(word).exists() {
                dead.push((path.clone(), word.to_owned()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:?}");
}
