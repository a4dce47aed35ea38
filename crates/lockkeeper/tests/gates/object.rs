use std::sync::Arc;

use bytes::Bytes;
use lockkeeper::Token;
use lockkeeper::gates::object::ObjectGate;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Attribute, ObjectStore, ObjectStoreExt, PutOptions};

use crate::s3::S3;
use crate::writers::{assert_fenced, numbers, write_at_once};

async fn thirty_two_writers(gate: ObjectGate) {
    let path = Path::from("batches/history");
    let passed = write_at_once(|_, token| {
        let (gate, path) = (gate.clone(), path.clone());
        async move {
            let add = move |content: Option<Bytes>| {
                let mut content = content.unwrap_or_default().to_vec();
                content.extend(format!("{token}\n").bytes());
                content.into()
            };
            gate.update(&path, token, add).await
        }
    })
    .await;
    let object = gate.get(&path).await.unwrap().unwrap();
    assert_fenced(passed, &numbers(std::str::from_utf8(&object.bytes).unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced_in_memory() {
    thirty_two_writers(ObjectGate::new(Arc::new(InMemory::new()))).await;
    thirty_two_writers(ObjectGate::raw(Arc::new(InMemory::new()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    thirty_two_writers(ObjectGate::local(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_are_fenced_in_s3() {
    let s3 = S3::start(true).await;
    thirty_two_writers(ObjectGate::new(s3.client())).await;
}

#[tokio::test]
async fn lower_tokens_fail_and_equal_ones_pass() {
    let (folder, s3) = (tempfile::tempdir().unwrap(), S3::start(true).await);
    let path = Path::from("batch");
    for gate in [
        ObjectGate::new(Arc::new(InMemory::new())),
        ObjectGate::raw(Arc::new(InMemory::new())),
        ObjectGate::local(folder.path()),
        ObjectGate::new(s3.client()),
    ] {
        assert_eq!(gate.get(&path).await.unwrap(), None);
        for (token, passes) in [(4, true), (4, true), (6, true), (5, false), (6, true)] {
            let put = gate.put(&path, format!("by {token}"), Token(token)).await;
            assert_eq!(put.is_ok(), passes, "{put:?}");
        }
        let object = gate.get(&path).await.unwrap().unwrap();
        assert_eq!((&object.bytes[..], object.token), (&b"by 6"[..], Token(6)));
    }
}

#[tokio::test]
async fn raw_gate_keeps_content_and_attributes() {
    let store = Arc::new(InMemory::new());
    let path = Path::from("report.csv");
    let mut options = PutOptions::default();
    options.attributes.insert(Attribute::ContentType, "text/csv".into());
    store.put_opts(&path, "a,b".into(), options).await.unwrap();
    let gate = ObjectGate::raw(store.clone());
    let add = |content: Option<Bytes>| [&content.unwrap()[..], b"\n1,2"].concat().into();
    gate.update(&path, Token(1), add).await.unwrap();
    let found = store.get(&path).await.unwrap();
    assert_eq!(found.attributes.get(&Attribute::ContentType).unwrap().as_ref(), "text/csv");
    assert_eq!(&found.bytes().await.unwrap()[..], b"a,b\n1,2");
}

#[tokio::test]
async fn probe_rejects_unsuitable_stores() {
    let prefix = Path::from("batches");
    let (memory, s3, folder) =
        (Arc::new(InMemory::new()), S3::start(true).await, tempfile::tempdir().unwrap());
    ObjectGate::new(memory.clone()).probe(&prefix).await.unwrap();
    ObjectGate::raw(memory.clone()).probe(&prefix).await.unwrap();
    ObjectGate::local(folder.path()).probe(&prefix).await.unwrap();
    ObjectGate::new(s3.client()).probe(&prefix).await.unwrap();
    let left = futures_util::StreamExt::next(&mut memory.list(None)).await;
    assert!(left.is_none() && s3.is_empty(), "the probe leaves objects behind");

    // S3 reuses the ETag for equal content.
    let error = ObjectGate::raw(s3.client()).probe(&prefix).await.unwrap_err();
    assert!(error.to_string().contains("ObjectGate::new"), "{error}");
    // A store that ignores the condition.
    let ignoring = S3::start(false).await;
    assert_eq!(ObjectGate::new(ignoring.client()).probe(&prefix).await.unwrap_err().code(), "fatal");
    // A store without conditional puts.
    let plain: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    assert_eq!(ObjectGate::new(plain).probe(&prefix).await.unwrap_err().code(), "unsupported");
}
