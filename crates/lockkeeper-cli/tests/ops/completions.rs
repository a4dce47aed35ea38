//! Completions and manual pages.

use std::process::{Command, Stdio};

use crate::support::{lockkeeper, text};

const VERBS: [&str; 12] = [
    "serve",
    "run",
    "elect",
    "ls",
    "who",
    "status",
    "member",
    "snapshot",
    "doctor",
    "config",
    "completions",
    "man",
];

fn completions(shell: &str) -> String {
    let output = lockkeeper().args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn bash_completes_verbs_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lockkeeper.bash");
    std::fs::write(&file, completions("bash")).unwrap();
    let complete = |words: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _lockkeeper lockkeeper \"${{COMP_WORDS[-1]}}\" \"\"; echo \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let output = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert_eq!(complete("lockkeeper ser").trim(), "serve");
    assert_eq!(complete("lockkeeper serve --data-").trim(), "--data-dir");
    assert_eq!(complete("lockkeeper member rem").trim(), "remove");
}

#[test]
fn zsh_and_fish_complete_all_verbs() {
    for (shell, begins) in [("zsh", "#compdef lockkeeper"), ("fish", "# Print an optspec")] {
        let script = completions(shell);
        assert!(script.starts_with(begins), "{shell}: {}", &script[..80]);
        for verb in VERBS {
            assert!(script.contains(verb), "{shell} does not know {verb}");
        }
    }
    let output = lockkeeper().args(["completions", "tcsh"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

#[test]
fn each_verb_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = lockkeeper().arg("man").arg(&pages).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for verb in VERBS {
        let page = std::fs::read_to_string(pages.join(format!("lockkeeper-{verb}.1"))).unwrap();
        assert!(page.contains(".TH ") && page.contains(".SH NAME"), "{verb}: {page}");
    }
    let serve = std::fs::read_to_string(pages.join("lockkeeper-serve.1")).unwrap();
    assert!(serve.contains("LOCKKEEPER_DATA_DIR"), "variables are in the manual: {serve}");
    let printed = lockkeeper().arg("man").output().unwrap();
    let whole = std::fs::read_to_string(pages.join("lockkeeper.1")).unwrap();
    assert_eq!(text(&printed.stdout), whole);
    let refused = lockkeeper().args(["man", "/proc/lockkeeper"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}
