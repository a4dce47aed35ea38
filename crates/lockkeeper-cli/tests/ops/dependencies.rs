//! What deny.toml says of the crates that we build on, looked after here as well: cargo-deny takes minutes to build and is
//! not on every machine. Advisories are left to it, which has to download them.

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

/// Whether an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0` can be met with what is allowed.
fn is_met(expression: &str, allowed: &[&str]) -> bool {
    // Older crates write a slash for OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, allowed);
    assert!(rest.is_empty(), "{expression} is no expression of licences");
    met
}

fn any_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = all_of(words, allowed);
    while let ["OR", more @ ..] = rest {
        let (other, behind) = all_of(more, allowed);
        (met, rest) = (met || other, behind);
    }
    (met, rest)
}

fn all_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one_of(words, allowed);
    while let ["AND", more @ ..] = rest {
        let (other, behind) = one_of(more, allowed);
        (met, rest) = (met && other, behind);
    }
    (met, rest)
}

fn one_of<'a>(words: &'a [&'a str], allowed: &[&str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner, allowed) {
            (met, [")", rest @ ..]) => (met, rest),
            _ => panic!("a bracket is not closed: {words:?}"),
        },
        // An exception is a licence of its own.
        [name, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{name} WITH {exception}").as_str()), rest)
        }
        [name, rest @ ..] => (allowed.contains(&name.trim_end_matches('+')), rest),
        [] => panic!("a licence is missing"),
    }
}

#[test]
fn every_crate_has_a_licence_that_we_allow_and_comes_from_the_registry() {
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
        if licence.is_empty() || !is_met(licence, &allowed) {
            wrong.push(format!("{name} has the licence {licence:?}, which deny.toml does not allow"));
        }
        // Our own have none.
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
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "MPL-2.0"];
    for met in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "MPL-2.0+"] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for not in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR ISC) AND MIT", "Apache-2.0 WITH LLVM-exception"] {
        assert!(!is_met(not, &allowed), "{not}");
    }
}
