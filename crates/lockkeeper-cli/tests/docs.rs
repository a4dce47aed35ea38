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
