use std::sync::Arc;

use lockkeeper::Token;
use lockkeeper::gates::file::FileGate;

use crate::writers::{assert_fenced, numbers, write_at_once};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let path = Arc::new(folder.path().join("history"));
    let passed = write_at_once(|_, token| {
        let path = Arc::clone(&path);
        async move {
            let add = move |content: Option<Vec<u8>>| {
                let mut content = content.unwrap_or_default();
                content.extend(format!("{token}\n").bytes());
                content
            };
            FileGate::new(&*path).update(token, add).await
        }
    })
    .await;
    assert_fenced(passed, &numbers(&std::fs::read_to_string(&*path).unwrap()));
}

#[tokio::test]
async fn read_under_a_token_refuses_older_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let gate = FileGate::new(folder.path().join("report"));
    assert_eq!(gate.read(Token(1)).await.unwrap(), None);
    gate.write("one", Token(1)).await.unwrap();
    assert_eq!(gate.read(Token(3)).await.unwrap().unwrap(), b"one");
    assert_eq!(gate.write("late", Token(2)).await.unwrap_err().code(), "stale_token");
    assert_eq!(gate.highest().await.unwrap(), Token(3));
    assert_eq!(std::fs::read(gate.path()).unwrap(), b"one");
}

#[tokio::test]
async fn probe_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    FileGate::new(folder.path().join("report")).probe().await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let nowhere = FileGate::new(folder.path().join("no/such/folder/report")).probe().await.unwrap_err();
    assert_eq!(nowhere.code(), "unavailable");
}
