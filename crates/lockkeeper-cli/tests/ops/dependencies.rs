//! Checks the rules of deny.toml for our dependencies without cargo-deny, which takes minutes to build and is not installed
//! everywhere. Advisories are left to cargo-deny, because they have to be downloaded.

use std::process::Command;

use serde_json::Value;

use crate::deploy::{read, root};
use crate::support::text;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// All packages that are built here, with all features.
fn packages() -> Vec<Value> {
    let version = text(&cargo().arg("-vV").output().unwrap().stdout);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("the host of cargo");
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--all-features"])
        .args(["--filter-platform", host])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether allowed licences satisfy an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0`.
fn is_satisfied(expression: &str, allowed: &[&str]) -> bool {
    // Older crates write a slash for OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (satisfied, rest) = any_of(&words, allowed);
    assert!(rest.is_empty(), "{expression} is not a licence expression");
    satisfied
}

fn any_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    let (mut satisfied, mut rest) = all_of(words, allowed);
    while let ["OR", more @ ..] = rest {
        let (other, behind) = all_of(more, allowed);
        (satisfied, rest) = (satisfied || other, behind);
    }
    (satisfied, rest)
}

fn all_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    let (mut satisfied, mut rest) = one_of(words, allowed);
    while let ["AND", more @ ..] = rest {
        let (other, behind) = one_of(more, allowed);
        (satisfied, rest) = (satisfied && other, behind);
    }
    (satisfied, rest)
}

fn one_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner, allowed) {
            (satisfied, [")", rest @ ..]) => (satisfied, rest),
            _ => panic!("a bracket is not closed: {words:?}"),
        },
        // A licence with an exception counts as a separate licence.
        [name, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{name} WITH {exception}").as_str()), rest)
        }
        [name, rest @ ..] => (allowed.contains(&name.trim_end_matches('+')), rest),
        [] => panic!("a licence is missing"),
    }
}

#[test]
fn every_crate_has_an_allowed_licence_and_comes_from_the_registry() {
    let rules: toml::Table = read("deny.toml").parse().unwrap();
    let texts = |value: &toml::Value, key: Option<&str>| -> Vec<String> {
        let items = value.as_array().unwrap().iter();
        items.map(|item| key.map_or(item, |key| &item[key]).as_str().unwrap().to_owned()).collect()
    };
    let allowed = texts(&rules["licenses"]["allow"], None);
    let allowed: Vec<_> = allowed.iter().map(String::as_str).collect();
    let denied = texts(&rules["bans"]["deny"], Some("crate"));
    let packages = packages();
    assert!(packages.len() > 100, "only {} packages", packages.len());
    let mut wrong = Vec::new();
    for package in &packages {
        let (name, licence) = (package["name"].as_str().unwrap(), package["license"].as_str().unwrap_or(""));
        if licence.is_empty() || !is_satisfied(licence, &allowed) {
            wrong.push(format!("{name} has the licence {licence:?}, which deny.toml does not allow"));
        }
        // Our own crates have no source.
        if package["source"].as_str().is_some_and(|source| source != REGISTRY) {
            wrong.push(format!("{name} comes from {}", package["source"]));
        }
        if denied.iter().any(|denied| denied == name) {
            wrong.push(format!("{name} is banned by deny.toml"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "MPL-2.0"];
    for satisfied in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "MPL-2.0+"]
    {
        assert!(is_satisfied(satisfied, &allowed), "{satisfied}");
    }
    for not in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR ISC) AND MIT", "Apache-2.0 WITH LLVM-exception"] {
        assert!(!is_satisfied(not, &allowed), "{not}");
    }
}
