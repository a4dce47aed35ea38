//! The book: every page is in its summary, and every link, picture, anchor and included file is there.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All Markdown files that people read: at the root, and below docs/.
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
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        found.push(root().join(name));
    }
    found.sort();
    found
}

/// The text without what is shown as code: that has links of its own.
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

/// What is wrong with a link, if anything is.
fn dead(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent().unwrap().join(file),
    };
    if !target.exists() {
        return Some(format!("{}: there is no {link}", page.display()));
    }
    if !anchor.is_empty() && !anchors(&fs::read_to_string(&target).unwrap()).contains(anchor) {
        return Some(format!("{}: {file} has no heading #{anchor}", page.display()));
    }
    None
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let found = links(&text);
        count += found.len();
        wrong.extend(found.iter().filter_map(|link| dead(&page, link)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 50, "only {count} links were looked at");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed = links(&summary);
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(listed.len(), once.len(), "a page is there twice: {listed:?}");
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
        assert!(text.contains(&format!("images/{name}")), "nobody shows {name}");
    }
    let clients = fs::read_to_string(root().join("docs/clients.md")).unwrap();
    let included: Vec<_> =
        clients.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next()).collect();
    assert_eq!(included.len(), 4, "{included:?}");
    for file in included {
        assert!(root().join("docs").join(file).is_file(), "{file} is included, and not there");
    }
}

#[test]
fn the_book_is_where_its_settings_say() {
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

/// The description of the HTTP interface, in all its parts.
fn openapi() -> Vec<serde_json::Value> {
    let folder = root().join("crates/lockkeeper-server/src/listen/http");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let parts = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    parts.map(|path| serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()).collect()
}

#[test]
fn every_grpc_call_is_in_its_page() {
    let contract = read("proto/lockkeeper/v1/lockkeeper.proto");
    let calls: BTreeSet<_> = contract
        .lines()
        .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next())
        .map(str::to_owned)
        .collect();
    assert!(calls.len() > 30, "{calls:?}");
    let page = read("docs/grpc.md");
    let (table, _) = page.split_once("\nReflection").unwrap();
    assert_eq!(words_of_cell(table, 1), calls, "docs/grpc.md names every call, and no other");
    let source = read("crates/lockkeeper-server/src/listen/grpc.rs");
    let metadata: BTreeSet<_> =
        source.split('"').filter(|text| text.starts_with("lockkeeper-") && !text.contains(' ')).collect();
    assert!(metadata.len() >= 5, "{metadata:?}");
    for name in metadata {
        assert!(page.contains(&format!("`{name}`")), "docs/grpc.md does not tell of {name}");
    }
}

#[test]
fn every_http_call_is_in_its_page() {
    // The same as another, and the files of the console, which are nobody's contract.
    let unnamed = |path: &str| path == "/v1/openapi.json" || path.starts_with("/console/");
    let mut calls = BTreeSet::new();
    for part in openapi() {
        for (path, methods) in part["paths"].as_object().unwrap().iter().filter(|(path, _)| !unnamed(path)) {
            calls.extend(methods.as_object().unwrap().keys().map(|m| format!("{} {path}", m.to_uppercase())));
        }
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
    let parts = openapi();
    let codes = parts.iter().find_map(|part| part.pointer("/components/schemas/ErrorCode/enum")).unwrap();
    let codes: BTreeSet<_> =
        codes.as_array().unwrap().iter().map(|code| code.as_str().unwrap().to_owned()).collect();
    for page in ["docs/http.md", "docs/grpc.md"] {
        assert_eq!(words_of_cell(&section(page, "## Errors"), 0), codes, "{page}");
    }
}

/// The checks themselves can fail.
#[test]
fn what_is_dead_is_found() {
    let page = root().join("docs/start.md");
    assert_eq!(links("a [b](c.md#d) `[x](y)` ![e](f.svg)\n```\n[g](h)\n```\n"), ["c.md#d", "f.svg"]);
    assert!(dead(&page, "concepts.md#queue").is_none());
    assert!(dead(&page, "concepts.md#nothing-like-it").is_some());
    assert!(dead(&page, "nowhere.md").is_some());
    assert!(dead(&page, "#not-here").is_some());
    assert!(
        anchors("# A b\n## C, d: e!\n## A b\n")
            .is_superset(&["a-b".into(), "c-d-e".into(), "a-b-1".into()].into())
    );
}
