//! Waiting: for the one before, and for nobody else.

use super::Etcd;
use super::session::{Lease, once};
use super::wire::{
    RangeRequest, RequestOp, SortOrder, SortTarget, TxnRequest, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::engines::runtime::sessions::Ticket;
use crate::engines::runtime::{Claim, Failure};

/// What has to go before it is worth looking again.
struct Obstacle {
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// What we have seen; the watch begins after it.
    revision: i64,
}

impl Etcd {
    /// Waits until the entry is let in; `None` if it is no longer there.
    pub(super) async fn wait_for_turn(&self, lease: &Lease, ticket: &Ticket) -> Result<Option<u64>, Failure> {
        let own = ticket.place.get().copied().unwrap_or_default();
        let key = self.entry_key(lease, ticket);
        loop {
            let Some(obstacle) = self.obstacle(&key, own, ticket).await? else {
                return Ok(None);
            };
            match obstacle {
                Some(obstacle) => self.deleted(obstacle).await?,
                None => return Ok(Some(own)),
            }
        }
    }

    /// What is in the way of an entry: `None` if the entry is gone, `Some(None)` if nothing is.
    async fn obstacle(
        &self,
        key: &[u8],
        own: u64,
        ticket: &Ticket,
    ) -> Result<Option<Option<Obstacle>>, Failure> {
        let claim = ticket.claim;
        let (prefix, end) = self.queue_range(&ticket.lock);
        let earlier = RangeRequest {
            key: prefix.clone(),
            range_end: end.clone(),
            // Whoever wants all of it needs all before it to be gone: the nearest goes last, or we look again.
            limit: i64::from(claim.is_exclusive()),
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Create as i32,
            keys_only: true,
            max_create_revision: own.cast_signed() - 1,
        };
        let itself = RangeRequest { key: key.to_vec(), keys_only: true, ..RangeRequest::default() };
        let success = vec![RequestOp::range(itself), RequestOp::range(earlier)];
        let answer = self.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        if answer.range(0).first().is_none_or(|entry| entry.create_revision.cast_unsigned() != own) {
            return Ok(None);
        }
        let revision = answer.revision();
        let earlier: Vec<(&[u8], Claim)> = answer
            .range(1)
            .iter()
            .filter_map(|entry| Some((entry.key.as_slice(), self.claim_of(&entry.key)?)))
            .collect();
        if claim.is_admitted_behind(earlier.iter().map(|(_, claim)| *claim))? {
            return Ok(Some(None));
        }
        let one = |key: &[u8]| Obstacle { key: key.to_vec(), range_end: Vec::new(), revision };
        let obstacle = if claim.is_exclusive() {
            earlier.first().map(|(key, _)| one(key))
        } else if claim.is_counted() {
            // Any of them may make room.
            Some(Obstacle { key: prefix, range_end: end, revision })
        } else {
            // A reader waits for the nearest writer before it; they come nearest first.
            earlier.iter().find(|(_, claim)| claim.is_exclusive()).map(|(key, _)| one(key))
        };
        Ok(Some(obstacle))
    }

    /// Resolves when something there is deleted.
    async fn deleted(&self, obstacle: Obstacle) -> Result<(), Failure> {
        let create = WatchCreateRequest {
            key: obstacle.key,
            range_end: obstacle.range_end,
            start_revision: obstacle.revision + 1,
            filters: vec![0],
        };
        let generation = self.client.generation();
        let watched = async {
            let asked = once(WatchRequest { create: Some(create) });
            let mut answers =
                self.client.stream::<_, WatchResponse>("/etcdserverpb.Watch/Watch", asked).await?;
            loop {
                let answer = answers.next(&self.client).await?;
                if answer.events.iter().any(|event| event.kind == 1) || answer.compact_revision > 0 {
                    return Ok(());
                }
                if answer.canceled {
                    return Err(Failure::unreachable(format!("a watch was ended: {}", answer.cancel_reason)));
                }
            }
        };
        tokio::select! {
            // A connection that is not trusted any more does not tell of its own end.
            () = self.client.link_left(generation) => Ok(()),
            watched = watched => watched,
        }
    }

    /// Resolves when the entry is no longer there.
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
