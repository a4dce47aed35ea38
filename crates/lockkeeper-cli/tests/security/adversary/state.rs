//! Fills the replicated state up to its bound, again and again.

use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answer;
use lockkeeper_api::v1::operation::Kind;
use tokio::task::JoinSet;

use super::attacks::Adversary;
use super::frames::Frames;

/// The operation that fills it, as counted: refused at the bound.
pub const STATE: &str = "state";
pub const FILL: &str = "put_value";
/// Values in a frame.
const VALUES: u64 = 30;
const VALUE_BYTES: usize = 60 << 10;
/// How long the state stays full, and everything that needs room is refused.
const FULL_FOR: Duration = Duration::from_millis(500);
/// Leaves the disk some time.
const PAUSE: Duration = Duration::from_millis(10);

impl Adversary {
    pub fn fill_state(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().put_and_delete());
    }

    /// Puts values until the state is full, and then deletes a quarter of them, which lets the other attacks go on.
    async fn put_and_delete(self) {
        let (mut first, mut next) = (0, 0);
        loop {
            let Ok(mut frames) = Frames::connect(&self.caller).await else { continue };
            while let Ok(answers) = frames.call((next..next + VALUES).map(put).collect()).await {
                let is_full = answers.iter().any(|answer| matches!(answer, Answer::Error(_)));
                self.tally.add(STATE, FILL, !is_full);
                next += VALUES;
                if is_full {
                    tokio::time::sleep(FULL_FOR).await;
                    let until = first + (next - first) / 4;
                    if frames.call((first..until).map(delete).collect()).await.is_err() {
                        break;
                    }
                    first = until;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn key(number: u64) -> String {
    format!("adversary/fill/{number}")
}

fn put(number: u64) -> Kind {
    let value = vec![number as u8; VALUE_BYTES];
    Kind::PutValue(v1::PutValueRequest { key: key(number), value, ..Default::default() })
}

fn delete(number: u64) -> Kind {
    Kind::DeleteValue(v1::DeleteValueRequest { key: key(number), ..Default::default() })
}
