//! Checks of the book: every page is in its summary, every link, picture, anchor and included file exists, and every cited
//! safety rule is defined.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_api::Code;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Markdown files that people read: at the root, below docs/, and the README of each crate.
fn pages() -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    below(&root().join("docs"), &mut found);
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let readme = entry.unwrap().path().join("README.md");
        if readme.is_file() {
            found.push(readme);
        }
    }
    found.sort();
    found
}

/// The text without code, which may contain brackets of its own.
fn prose(text: &str) -> String {
    let mut fence: Option<String> = None;
    let mut prose = String::new();
    for line in text.lines() {
        let marks: String = line.trim_start().chars().take_while(|c| *c == '`').collect();
        match &fence {
            Some(open) if marks.len() >= open.len() && line.trim() == marks => fence = None,
            Some(_) => {}
            None if marks.len() >= 3 => fence = Some(marks),
            None => {
                // Code within a line, by pairs of backticks.
                for (index, part) in line.split('`').enumerate() {
                    prose.push_str(if index % 2 == 0 { part } else { "code" });
                }
                prose.push('\n');
            }
        }
    }
    prose
}

/// The targets of links and pictures: `[..](target)` and `<target>`.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let title = line.trim_start_matches('#');
        if in_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut own = anchor.clone();
        for number in 1.. {
            if found.insert(own.clone()) {
                break;
            }
            own = format!("{anchor}-{number}");
        }
    }
    found
}

/// The error of a broken link, or `None`.
fn broken_link(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap().join(file),
    };
    if !target.exists() {
        return Some(format!("{}: {link} does not exist", page.display()));
    }
    if !anchor.is_empty() && !anchors(&fs::read_to_string(&target).unwrap()).contains(anchor) {
        return Some(format!("{}: {file} has no heading #{anchor}", page.display()));
    }
    None
}

#[test]
fn every_link_resolves() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let found = links(&text);
        count += found.len();
        wrong.extend(found.iter().filter_map(|link| broken_link(&page, link)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 50, "only {count} links were checked");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed = links(&summary);
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), once.len(), "a page is listed twice: {listed:?}");
    let there: BTreeSet<_> = pages()
        .into_iter()
        .filter_map(|page| Some(page.strip_prefix(&docs).ok()?.to_str()?.to_owned()))
        .filter(|page| page != "SUMMARY.md")
        .collect();
    assert_eq!(there, once, "docs/SUMMARY.md lists every page below docs/, and no other");
}

#[test]
fn every_picture_and_client_is_shown() {
    let text: String = pages().iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    for entry in fs::read_dir(root().join("docs/images")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(text.contains(&format!("images/{name}")), "no page shows {name}");
    }
    let clients = fs::read_to_string(root().join("docs/clients.md")).unwrap();
    let included: Vec<_> =
        clients.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next()).collect();
    assert_eq!(included.len(), 4, "{included:?}");
    for file in included {
        assert!(root().join("docs").join(file).is_file(), "{file} is included and does not exist");
    }
}

#[test]
fn book_settings_name_the_docs_folder() {
    let book: toml::Table = fs::read_to_string(root().join("book.toml")).unwrap().parse().unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("docs"));
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The part of a page below a heading.
fn section(page: &str, heading: &str) -> String {
    let text = read(page);
    let below = text.split_once(heading).unwrap_or_else(|| panic!("{page} has no {heading}")).1;
    below.split("\n## ").next().unwrap().to_owned()
}

/// The words in backticks of the rows of a table, by cell.
fn words_of_cell(text: &str, cell: usize) -> BTreeSet<String> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(cell + 1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The description of the HTTP interface.
fn openapi() -> serde_json::Value {
    serde_json::from_str(lockkeeper_server::openapi_document()).unwrap()
}

/// Text files that are part of the project: no build output, no downloads, no hidden folders except those of the CI.
fn sources() -> Vec<(PathBuf, String)> {
    const SKIPPED: [&str; 5] = ["target", "node_modules", "lockkeeper-data", "generated", "corpus"];
    fn below(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let hidden = name.starts_with('.') && name != ".github" && name != ".ci";
            if hidden || SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                below(&path, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    below(&root(), &mut found);
    assert!(found.len() > 500, "only {} files: is this the workspace?", found.len());
    found
}

/// The safety rules that a text cites: `S` and a number, as a word of its own.
fn cited_rules(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c: char| !is_part(c))
        .filter(|word| word.strip_prefix('S').is_some_and(|rest| !rest.is_empty() && is_number(rest)))
        .map(str::to_owned)
        .collect()
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn every_cited_safety_rule_is_defined() {
    let page = read("docs/safety.md");
    let defined: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## S")?.split(':').next())
        .map(|number| format!("S{number}"))
        .collect();
    let all: BTreeSet<_> = (1..=13).map(|number| format!("S{number}")).collect();
    assert_eq!(defined, all, "docs/safety.md defines S1 to S13");
    let mut undefined = Vec::new();
    let mut cited = BTreeSet::new();
    for (path, text) in sources().iter().filter(|(path, _)| {
        path.extension()
            .is_some_and(|ending| ["md", "rs", "proto", "js", "txt", "toml"].iter().any(|one| ending == *one))
    }) {
        for rule in cited_rules(text) {
            if !defined.contains(&rule) {
                undefined.push(format!("{}: {rule}", path.display()));
            }
            cited.insert(rule);
        }
    }
    assert!(undefined.is_empty(), "docs/safety.md does not define these: {undefined:#?}");
    assert_eq!(cited, defined);
}

/// Hosts that may be named: addresses of the machine itself, names without a dot, reserved names, and identifiers that are
/// not addresses.
fn is_allowed_host(host: &str) -> bool {
    const IDENTIFIERS: [&str; 2] = ["www.w3.org", "www.apache.org"];
    // The one placeholder of RELEASE-CHECKLIST.md is below `.example`, too.
    let reserved = [".example", ".svc", ".invalid", ".test"];
    !host.contains('.')
        || host.parse::<std::net::IpAddr>().is_ok()
        || host.split('.').all(is_number)
        || reserved.iter().any(|ending| host.ends_with(ending))
        || IDENTIFIERS.contains(&host)
}

/// The hosts of the addresses in a text.
fn hosts(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let found = text.split("://").collect::<Vec<_>>();
    found
        .windows(2)
        .filter(|pair| pair[0].ends_with("http") || pair[0].ends_with("https"))
        .map(|pair| pair[1].split(|c: char| !is_part(c)).next().unwrap().trim_end_matches('.').to_owned())
        .filter(|host| !host.is_empty())
        .collect()
}

#[test]
fn no_foreign_host_is_named() {
    // The address of the repository, once it has one.
    let own = hosts(&read("Cargo.toml"));
    let mut foreign = Vec::new();
    for (path, text) in sources() {
        // The lock file and the licence test name the registry: that is where the crates come from.
        if path.ends_with("Cargo.lock") || path.ends_with("ops/dependencies.rs") {
            continue;
        }
        for host in hosts(&text).iter().filter(|host| !is_allowed_host(host) && !own.contains(*host)) {
            foreign.push(format!("{}: {host}", path.display()));
        }
    }
    assert!(foreign.is_empty(), "use the placeholder of RELEASE-CHECKLIST.md: {foreign:#?}");
}

/// The commands of `lockkeeper` in the code blocks of a page, as words up to `--`.
fn documented_commands(text: &str) -> Vec<Vec<String>> {
    let mut is_code = false;
    let mut code = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            code.push_str(line.split(" #").next().unwrap());
            code.push('\n');
        }
    }
    let mut found = Vec::new();
    for line in code.replace("\\\n", " ").lines() {
        for part in line.split(['|', ';', '&']) {
            let is_prefix = |word: &&str| *word == "$" || (word.contains('=') && !word.starts_with('-'));
            let mut words = part.split_whitespace().skip_while(is_prefix);
            if words.next() == Some("lockkeeper") {
                found.push(words.take_while(|word| *word != "--").map(str::to_owned).collect());
            }
        }
    }
    found
}

/// The error of a documented command, or `None`.
fn unknown_command(words: &[String]) -> Option<String> {
    let help = |verbs: &[String]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_lockkeeper")).args(verbs).arg("--help").output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    };
    let mut verbs = Vec::new();
    let mut text = help(&verbs)?;
    // Descend to the last subcommand: each is a line of its parent's help.
    for word in words.iter().take_while(|word| !word.starts_with('-')) {
        if !text.lines().any(|line| line.split_whitespace().next() == Some(word) && line.starts_with("  ")) {
            break;
        }
        verbs.push(word.clone());
        match help(&verbs) {
            Some(found) => text = found,
            None => return Some(format!("{verbs:?} is not a command")),
        }
    }
    if verbs.is_empty() && words.first().is_some_and(|word| !word.starts_with('-')) {
        return Some(format!("there is no verb {}", words[0]));
    }
    let flags = words.iter().filter(|word| word.starts_with("--"));
    let unknown = flags.map(|flag| flag.split('=').next().unwrap()).find(|flag| {
        !text.split(|c: char| c.is_whitespace() || c == ',').any(|word| word.split('=').next() == Some(flag))
    });
    unknown.map(|flag| format!("{verbs:?} has no {flag}"))
}

#[test]
fn every_documented_command_exists() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        for words in documented_commands(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            if let Some(why) = unknown_command(&words) {
                wrong.push(format!("{}: lockkeeper {}: {why}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 40, "only {count} commands were checked");
}

#[test]
fn wrong_commands_are_found() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let text = "```sh\nA=b lockkeeper ls --limit 2 \\\n  x # y --z\n$ lockkeeper run a -- b --c | lockkeeper who a\n```\n";
    assert_eq!(documented_commands(text), [words("ls --limit 2 x"), words("run a"), words("who a")]);
    assert_eq!(unknown_command(&words("access token create ci --to file")), None);
    assert!(unknown_command(&words("acces list")).is_some());
    assert!(unknown_command(&words("member list --lag")).is_some());
}

#[test]
fn every_grpc_call_is_in_its_page() {
    let contract = read("crates/lockkeeper-api/proto/lockkeeper/v1/lockkeeper.proto");
    let calls: BTreeSet<_> = contract
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next())
        .map(str::to_owned)
        .collect();
    assert!(calls.len() > 30, "{calls:?}");
    let page = read("docs/grpc.md");
    // The stream has no path over HTTP.
    let mut named = words_of_cell(&section("docs/http.md", "## Calls"), 1);
    named.insert("Stream".to_owned());
    assert_eq!(named, calls, "the table of docs/http.md names every gRPC call, and no other");
    let source = read("crates/lockkeeper-server/src/listen/grpc.rs");
    let metadata: BTreeSet<_> =
        source.split('"').filter(|text| text.starts_with("lockkeeper-") && !text.contains(' ')).collect();
    assert!(metadata.len() >= 5, "{metadata:?}");
    for name in metadata {
        assert!(page.contains(&format!("`{name}`")), "docs/grpc.md does not mention {name}");
    }
}

#[test]
fn every_http_call_is_in_its_page() {
    // Aliases, and the files of the console, are not part of the contract.
    let unnamed = |path: &str| path == "/v1/openapi.json" || path.starts_with("/console/");
    let mut calls = BTreeSet::new();
    for (path, methods) in openapi()["paths"].as_object().unwrap().iter().filter(|(path, _)| !unnamed(path)) {
        calls.extend(methods.as_object().unwrap().keys().map(|m| format!("{} {path}", m.to_uppercase())));
    }
    let mut named = BTreeSet::new();
    for row in section("docs/http.md", "## Calls").lines().filter(|row| row.starts_with("| ")).skip(1) {
        let cell = row.split('|').nth(1).unwrap().trim();
        let (method, paths) = cell.split_once(' ').unwrap();
        let paths: Vec<_> = paths.split(" · ").map(|path| path.split('?').next().unwrap()).collect();
        // `/v1/member/add · remove` is short for two paths that differ in their end.
        let stem = paths[0].rsplit_once('/').unwrap().0;
        for path in paths {
            match path.starts_with('/') {
                true => named.insert(format!("{method} {path}")),
                false => named.insert(format!("{method} {stem}/{path}")),
            };
        }
    }
    assert_eq!(named, calls, "docs/http.md names every call, and no other");
}

#[test]
fn every_code_is_in_both_pages() {
    let codes: BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    for page in ["docs/http.md", "docs/grpc.md"] {
        assert_eq!(words_of_cell(&section(page, "## Errors"), 0), codes, "{page}");
    }
}

#[test]
fn citations_and_hosts_are_found() {
    assert_eq!(cited_rules("(S3), S13: S1, FS2 S S4x"), ["S1", "S13", "S3"].map(str::to_owned).into());
    let text = concat!("see http", "://one.two/x and https", "://10.0.0.1:7420, redis", "://three.four");
    assert_eq!(hosts(text), ["10.0.0.1", "one.two"].map(str::to_owned).into());
    assert!(
        !is_allowed_host("one.two") && is_allowed_host("10.0.0.1") && is_allowed_host("lockkeeper.example")
    );
}

/// Tests the checks themselves.
#[test]
fn broken_links_are_found() {
    let page = root().join("docs/start.md");
    assert_eq!(links("a [b](c.md#d) `[x](y)` ![e](f.svg)\n```\n[g](h)\n```\n"), ["c.md#d", "f.svg"]);
    assert!(broken_link(&page, "concepts.md#queue").is_none());
    assert!(broken_link(&page, "concepts.md#nothing-like-it").is_some());
    assert!(broken_link(&page, "nowhere.md").is_some());
    assert!(broken_link(&page, "#not-here").is_some());
    assert!(
        anchors("# A b\n## C, d: e!\n## A b\n")
            .is_superset(&["a-b".into(), "c-d-e".into(), "a-b-1".into()].into())
    );
}
