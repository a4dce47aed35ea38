//! Publishing: metadata of the crates, contents of the packages, and the packages themselves.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::deploy::{read, root};
use crate::support::text;

const PUBLISHED: [&str; 6] = [
    "lockkeeper",
    "lockkeeper-api",
    "lockkeeper-cli",
    "lockkeeper-core",
    "lockkeeper-net",
    "lockkeeper-server",
];

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The crates of the workspace.
fn members() -> Vec<Value> {
    let output =
        cargo().args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

/// `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"] != Value::Array(Vec::new())
}

fn published() -> Vec<Value> {
    members().into_iter().filter(is_published).collect()
}

#[test]
fn only_crates_for_users_are_published() {
    let names: BTreeSet<_> = published().iter().map(|package| name(package).to_owned()).collect();
    assert_eq!(names, PUBLISHED.map(str::to_owned).into(), "all other crates need publish = false");
    let checklist = read("RELEASE-CHECKLIST.md");
    for name in &names {
        assert!(checklist.contains(&format!("`{name}`")), "RELEASE-CHECKLIST.md does not name {name}");
    }
}

/// What is missing in the metadata of a published crate.
fn gaps(package: &Value) -> Vec<String> {
    let mut gaps = Vec::new();
    for field in ["description", "license", "repository", "homepage", "readme", "rust_version"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            gaps.push(format!("{field} is missing"));
        }
    }
    let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        if !folder.join(file).is_file() {
            gaps.push(format!("{file} does not exist"));
        }
    }
    let keywords = package["keywords"].as_array().unwrap();
    // The registry takes five, of at most twenty characters each.
    let is_valid = |word: &Value| word.as_str().is_some_and(|word| word.len() <= 20);
    if keywords.is_empty() || keywords.len() > 5 || !keywords.iter().all(is_valid) {
        gaps.push(format!("these keywords are refused: {keywords:?}"));
    }
    let categories = package["categories"].as_array().unwrap();
    if categories.is_empty() || categories.len() > 5 {
        gaps.push(format!("these categories are refused: {categories:?}"));
    }
    if package["metadata"]["docs"]["rs"]["all-features"] != true {
        gaps.push("docs.rs does not document all features".to_owned());
    }
    gaps
}

#[test]
fn metadata_of_published_crates_is_complete() {
    for package in published() {
        let gaps = gaps(&package);
        assert!(gaps.is_empty(), "{}: {gaps:#?}", name(&package));
    }
}

#[test]
fn published_crates_depend_on_published_crates_only() {
    for package in published() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_ours = dependency["path"].is_string();
            if !is_ours || PUBLISHED.contains(&name(dependency)) {
                continue;
            }
            // Cargo drops a dependency of tests that has a path and no version.
            assert_eq!(dependency["kind"], "dev", "{} needs {}", name(&package), name(dependency));
            assert_eq!(dependency["req"], "*", "{} names a version of {}", name(&package), name(dependency));
        }
    }
}

#[test]
fn repository_placeholder_is_in_the_release_checklist() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let repository = workspace["workspace"]["package"]["repository"].as_str().unwrap();
    if repository.contains(".example") {
        assert!(read("RELEASE-CHECKLIST.md").contains(repository), "{repository} is not in the checklist");
    }
    for package in published() {
        assert_eq!(package["repository"], repository, "{}", name(&package));
    }
}

#[test]
fn packages_contain_what_a_build_needs() {
    let needed: [(&str, &[&str]); 6] = [
        ("lockkeeper", &["src/gates/redis.lua", "src/gates/postgres.sql"]),
        ("lockkeeper-api", &["proto/lockkeeper/v1/lockkeeper.proto", "src/generated/lockkeeper.v1.rs"]),
        ("lockkeeper-cli", &["src/main.rs"]),
        ("lockkeeper-core", &["src/table.rs"]),
        ("lockkeeper-net", &["src/frame.rs"]),
        ("lockkeeper-server", &["console/index.html", "console/app.js", "console/style.css"]),
    ];
    for (package, files) in needed {
        let output = cargo()
            .args(["package", "--list", "--allow-dirty", "--offline", "-p", package])
            .output()
            .unwrap();
        assert!(output.status.success(), "{package}: {}", text(&output.stderr));
        let listed = text(&output.stdout);
        let listed: BTreeSet<_> = listed.lines().collect();
        for file in ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"].iter().chain(files) {
            assert!(listed.contains(file), "{package} is packaged without {file}: {listed:?}");
        }
        let tests = listed.iter().find(|file| file.starts_with("tests/"));
        assert!(tests.is_none(), "{package} is packaged with {tests:?}");
    }
}

#[test]
fn every_published_crate_is_packaged() {
    let folder = tempfile::tempdir().unwrap();
    // A separate folder: a concurrent build holds the lock of the usual one.
    let output = Command::new(root().join("scripts/package"))
        .env("CARGO_TARGET_DIR", folder.path())
        .env_remove("CI")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let version = env!("CARGO_PKG_VERSION");
    for name in PUBLISHED {
        let package = folder.path().join(format!("package/{name}-{version}.crate"));
        let size = package.metadata().unwrap_or_else(|error| panic!("{}: {error}", package.display())).len();
        // The registry refuses more than 10 MiB.
        assert!(size > 1_000 && size < 10 << 20, "{name} has {size} bytes");
    }
}

#[test]
fn workflows_call_scripts_that_exist() {
    let mut called = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let workflow = crate::deploy::yaml(path.strip_prefix(root()).unwrap().to_str().unwrap()).remove(0);
        for (job, steps) in workflow["jobs"].as_object().unwrap() {
            assert!(steps["timeout-minutes"].is_u64(), "{job} of {} may run forever", path.display());
            for step in steps["steps"].as_array().unwrap().iter().filter_map(|step| step["run"].as_str()) {
                let is_script = |word: &&str| *word == "./test" || word.starts_with("scripts/");
                called.extend(step.split_whitespace().filter(is_script).map(str::to_owned));
            }
        }
    }
    assert!(called.contains("./test") && called.contains("scripts/package"), "{called:?}");
    for script in called {
        assert!(root().join(&script).is_file(), "{script} is called and does not exist");
    }
}

#[test]
fn ci_checks_the_oldest_supported_rust() {
    assert!(
        read(".github/workflows/ci.yml").contains("run: scripts/minimum-rust\n"),
        "CI does not call the script"
    );
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    // The script must read the version where cargo does. Only that line is run, not the check.
    let script = read("scripts/minimum-rust");
    let assignment =
        script.lines().find(|line| line.starts_with("version=")).expect("the script sets no version");
    assert!(assignment.contains("rust-version"), "{assignment}");
    assert!(script.contains(r#"cargo "+$version" check"#), "the script does not check with that version");
    let print = format!("{assignment}; echo \"$version\"");
    let output = Command::new("bash").args(["-c", &print]).current_dir(root()).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), version);
}
