//! Bounds the size of answers that show locks. Names, owners, scopes and values of candidates may be long, and there may be
//! thousands of them in one answer.

use lockkeeper_core::{HolderView, LockView, WaiterView};

/// Largest page or answer.
pub(crate) const PAGE_BYTES_MAX: usize = 1 << 20;
/// Size of a lock, a holder or a waiter in JSON without its texts: names of fields and numbers.
const FIELDS_BYTES: usize = 192;

/// The room that is left in an answer.
#[derive(Debug)]
pub(crate) struct PageRoom {
    bytes: usize,
}

impl Default for PageRoom {
    fn default() -> PageRoom {
        PageRoom { bytes: PAGE_BYTES_MAX }
    }
}

/// Takes views until there are `count` or the answer is full. Returns them, and whether more follow.
pub(crate) fn page(views: impl Iterator<Item = LockView>, count: usize) -> (Vec<LockView>, bool) {
    let (mut taken, mut room) = (Vec::new(), PageRoom::default());
    for view in views {
        if taken.len() == count || !room.take(&view) {
            return (taken, true);
        }
        taken.push(view);
    }
    (taken, false)
}

impl PageRoom {
    /// Takes the room of a lock. Returns false if there is not enough.
    pub(crate) fn take(&mut self, view: &LockView) -> bool {
        let entries = view.holders.iter().map(holder_bytes).chain(view.queue.iter().map(waiter_bytes));
        self.take_bytes(lock_bytes(view) + entries.sum::<usize>())
    }

    /// Takes the room of a lock, and removes the holders and waiters that do not fit.
    pub(crate) fn shorten(&mut self, view: &mut LockView) {
        self.take_bytes(lock_bytes(view));
        let holders = view.holders.iter().take_while(|it| self.take_bytes(holder_bytes(it))).count();
        let all_fit = holders == view.holders.len();
        let waiters = view.queue.iter().take_while(|it| all_fit && self.take_bytes(waiter_bytes(it))).count();
        view.holders.truncate(holders);
        view.queue.truncate(waiters);
    }

    fn take_bytes(&mut self, bytes: usize) -> bool {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => return false,
        }
        true
    }
}

fn lock_bytes(view: &LockView) -> usize {
    FIELDS_BYTES + json_bytes(&view.name)
}

fn holder_bytes(it: &HolderView) -> usize {
    FIELDS_BYTES + json_bytes(&it.owner) + json_bytes(&it.scope) + json_bytes(&it.value)
}

fn waiter_bytes(it: &WaiterView) -> usize {
    FIELDS_BYTES + json_bytes(&it.owner) + json_bytes(&it.scope) + json_bytes(&it.value)
}

/// Returns the length of a text in JSON, where a control character takes six bytes. It is never longer in protobuf.
fn json_bytes(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}

#[cfg(test)]
mod tests {
    use lockkeeper_api::lock::LockState;
    use lockkeeper_core::{Mode, SessionId, Token};

    use super::*;

    fn lock(holders: u32, waiters: u32, text: &str) -> LockView {
        let (session, token) = (SessionId(u128::MAX), Token((1 << 53) - 1));
        let holder = HolderView {
            session,
            token,
            mode: Mode::Exclusive,
            permits: u32::MAX,
            owner: text.into(),
            held_ms: (1 << 53) - 1,
            scope: text.into(),
            value: text.into(),
        };
        let waiter = WaiterView {
            session,
            position: u32::MAX,
            mode: Mode::Exclusive,
            owner: text.into(),
            waited_ms: (1 << 53) - 1,
            scope: text.into(),
            value: text.into(),
        };
        LockView {
            name: text.into(),
            capacity: u32::MAX,
            last_token: token,
            holders: vec![holder; holders as usize],
            queue: vec![waiter; waiters as usize],
            waiting: u32::MAX,
            closed_ms: (1 << 53) - 1,
        }
    }

    fn in_json(view: &LockView) -> usize {
        serde_json::to_string(&LockState::from(view.clone())).unwrap().len()
    }

    #[test]
    fn counted_size_is_never_smaller_than_the_answer() {
        for text in ["", "plain", "\u{1}\u{2}\n\u{1f}", "\"\\\"", "äöü🔒", &"\u{7}".repeat(4_096)] {
            for (holders, waiters) in [(0, 0), (1, 0), (0, 1), (7, 5)] {
                let view = lock(holders, waiters, text);
                let mut room = PageRoom { bytes: usize::MAX };
                assert!(room.take(&view));
                let counted = usize::MAX - room.bytes;
                let (json, proto) = (in_json(&view), {
                    use prost::Message;
                    lockkeeper_api::v1::LockState::from(LockState::from(view)).encoded_len()
                });
                assert!(counted >= json && counted >= proto, "{text:.9?}: {counted} for {json} and {proto}");
            }
        }
    }

    #[test]
    fn a_page_is_never_larger_than_its_bound_and_never_empty() {
        // The longest lock that lists and the console show: ten holders and waiters with the longest texts.
        let long = lock(10, 10, &"\u{1}".repeat(2_048));
        assert!(in_json(&long) > PAGE_BYTES_MAX / 2);
        let (taken, more) = page(std::iter::repeat(long), 1_000);
        assert_eq!((taken.len(), more), (1, true));
        let waiters = lock(0, 10, &"\u{1}".repeat(512));
        let (taken, more) = page(std::iter::repeat(waiters), 1_000);
        let json: usize = taken.iter().map(in_json).sum();
        assert!(more && (PAGE_BYTES_MAX / 2..=PAGE_BYTES_MAX).contains(&json), "{json}");
        let (taken, more) = page(std::iter::repeat_n(lock(1, 1, "ada"), 7), 7);
        assert_eq!((taken.len(), more), (7, false));
    }

    #[test]
    fn one_lock_is_shortened_to_the_size_of_a_page() {
        for (holders, waiters) in [(1_000, 0), (0, 1_000), (1_000, 1_000), (20, 1_000)] {
            let mut view = lock(holders, waiters, &"\u{1}".repeat(4_096));
            PageRoom::default().shorten(&mut view);
            let json = in_json(&view);
            assert!(json <= PAGE_BYTES_MAX && json > PAGE_BYTES_MAX / 2, "{json}");
            assert!(
                view.queue.is_empty() || view.holders.len() == holders as usize,
                "holders are shown first"
            );
        }
        let mut small = lock(1_000, 1_000, "ada");
        let whole = small.clone();
        PageRoom::default().shorten(&mut small);
        assert_eq!(small, whole);
    }
}
