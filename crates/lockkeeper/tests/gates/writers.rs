//! 32 concurrent writers, and the checks of what they wrote.

use std::future::Future;
use std::sync::Arc;

use lockkeeper::{Error, Token};
use tokio::sync::Barrier;

pub(crate) const WRITERS: u64 = 32;
const ROUNDS: u64 = 4;

/// Lets every writer write in every round, two of them under the same token; later rounds have higher tokens. Returns the
/// admitted tokens, by writer and round.
pub(crate) async fn write_at_once<F>(write: impl Fn(u64, Token) -> F) -> Vec<Token>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let start = Arc::new(Barrier::new(WRITERS as usize));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let attempts: Vec<_> = (0..ROUNDS)
            .map(|round| {
                // Not in the order of the writers, so that low and high tokens mix.
                let token = Token(1 + round * WRITERS + (writer * 7 % WRITERS) / 2);
                (token, write(writer, token))
            })
            .collect();
        let start = Arc::clone(&start);
        writers.push(tokio::spawn(async move {
            start.wait().await;
            let mut passed = Vec::new();
            for (token, attempt) in attempts {
                match attempt.await {
                    Ok(()) => passed.push(token),
                    Err(Error::StaleToken { last_token }) => {
                        assert!(last_token > token, "{last_token} {token}")
                    }
                    Err(error) => panic!("unexpected error: {error}"),
                }
            }
            passed
        }));
    }
    let mut passed = Vec::new();
    for writer in writers {
        passed.extend(writer.await.unwrap());
    }
    passed
}

/// Checks that the resource's history matches the answers and never decreases.
pub(crate) fn assert_fenced(mut passed: Vec<Token>, history: &[u64]) {
    assert!(history.is_sorted(), "a stale write was accepted: {history:?}");
    passed.sort();
    assert_eq!(passed.iter().map(|token| token.0).collect::<Vec<_>>(), history, "answers and history differ");
    let highest = 1 + (ROUNDS - 1) * WRITERS + (WRITERS - 1) / 2;
    assert_eq!(history.iter().filter(|token| **token == highest).count(), 2, "equal tokens pass");
}

/// Parses a history of whitespace-separated numbers.
pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}
