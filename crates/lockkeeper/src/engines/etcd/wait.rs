//! Waiting: each waiter watches the nearest earlier entry that blocks it.

use super::Etcd;
use super::session::{Lease, once_then_pending};
use super::wire::{
    NO_PUTS, RangeRequest, RequestOp, SortOrder, SortTarget, TxnRequest, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure};

/// The keys that block an entry. When one is deleted, admission is checked again.
struct Obstacle {
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The revision at which the queue was read; the watch starts after it.
    revision: i64,
}

/// The state of an entry in the queue.
enum Position {
    Holding,
    Blocked(Obstacle),
    /// The entry no longer exists.
    Gone,
}

impl Etcd {
    /// Waits until the entry holds the lock; `None` if the entry no longer exists.
    pub(super) async fn wait_for_turn(&self, lease: &Lease, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        let own = ticket.place.get().copied().unwrap_or_default();
        let key = self.entry_key(lease, ticket);
        loop {
            match self.position(&key, own, ticket).await? {
                Position::Holding => return Ok(Some(own)),
                Position::Blocked(obstacle) => self.deleted(obstacle).await?,
                Position::Gone => return Ok(None),
            }
        }
    }

    async fn position(&self, key: &[u8], own: u64, ticket: &Ticket) -> Result<Position, Failure> {
        let claim = ticket.claim;
        let (prefix, end) = self.queue_range(&ticket.lock);
        let earlier = RangeRequest {
            key: prefix.clone(),
            range_end: end.clone(),
            // An exclusive claim is blocked by every earlier entry. The nearest one is enough: when it is deleted, the
            // position is read again.
            limit: i64::from(claim.is_exclusive()),
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Create as i32,
            keys_only: true,
            max_create_revision: own.cast_signed() - 1,
        };
        let own_entry = RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() };
        let success = vec![RequestOp::range(own_entry), RequestOp::range(earlier)];
        let answer = self.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        if answer.range(0).first().is_none_or(|entry| entry.create_revision.cast_unsigned() != own) {
            return Ok(Position::Gone);
        }
        let revision = answer.revision();
        let earlier: Vec<(&[u8], Claim)> = answer
            .range(1)
            .iter()
            .filter_map(|entry| Some((entry.key.as_slice(), self.claim_of(&entry.key)?)))
            .collect();
        if claim.is_admitted_behind(earlier.iter().map(|(_, claim)| *claim))? {
            return Ok(Position::Holding);
        }
        let single = |key: &[u8]| Obstacle { key: key.to_vec(), range_end: Vec::new(), revision };
        let obstacle = if claim.is_exclusive() {
            earlier.first().map(|(key, _)| single(key))
        } else if claim.is_counted() {
            // The deletion of any earlier entry may make room.
            Some(Obstacle { key: prefix, range_end: end, revision })
        } else {
            // A reader waits for the nearest earlier writer; the nearest entry is first.
            earlier.iter().find(|(_, claim)| claim.is_exclusive()).map(|(key, _)| single(key))
        };
        Ok(obstacle.map_or(Position::Holding, Position::Blocked))
    }

    /// Resolves when a key of the obstacle is deleted.
    async fn deleted(&self, obstacle: Obstacle) -> Result<(), Failure> {
        let create = WatchCreateRequest {
            key: obstacle.key,
            range_end: obstacle.range_end,
            start_revision: obstacle.revision + 1,
            filters: vec![NO_PUTS],
        };
        let generation = self.client.generation();
        let watched = async {
            let requests = once_then_pending(WatchRequest { create: Some(create) });
            let mut answers =
                self.client.stream::<_, WatchResponse>("/etcdserverpb.Watch/Watch", requests).await?;
            loop {
                let answer = answers.next(&self.client).await?;
                if answer.events.iter().any(|event| event.kind == 1) || answer.compact_revision > 0 {
                    return Ok(());
                }
                if answer.canceled {
                    return Err(Failure::unreachable(format!(
                        "etcd canceled a watch: {}",
                        answer.cancel_reason
                    )));
                }
            }
        };
        tokio::select! {
            // A dead connection may never report its end.
            () = self.client.switched(generation) => Ok(()),
            watched = watched => watched,
        }
    }

    /// Resolves when the entry no longer exists.
    pub(super) async fn wait_for_loss(&self, lease: &Lease, ticket: &Ticket) -> Result<(), Failure> {
        let own = ticket.place.get().copied().unwrap_or_default();
        let key = self.entry_key(lease, ticket);
        loop {
            let range = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
            let answer = self.client.range(range).await?;
            if answer.kvs.first().is_none_or(|entry| entry.create_revision.cast_unsigned() != own) {
                return Ok(());
            }
            let revision = answer.header.map_or(0, |header| header.revision);
            self.deleted(Obstacle { key: key.clone(), range_end: Vec::new(), revision }).await?;
        }
    }
}
