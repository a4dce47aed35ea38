//! Entering and leaving the queue of a lock: one transaction each.

use std::sync::atomic::Ordering;

use lockkeeper_core::admission;

use super::Etcd;
use super::session::Lease;
use super::wire::{Compare, PutRequest, RangeRequest, RequestOp, SortOrder, SortTarget, TxnRequest};
use crate::engines::runtime::Failure;
use crate::engines::runtime::sessions::{Entered, Ticket, Try};
use crate::view::ForcedRelease;

impl Etcd {
    pub(super) async fn enter_queue(
        &self,
        lease: &Lease,
        ticket: &Ticket,
        mode: Try,
    ) -> Result<Entered, Failure> {
        let key = self.entry_key(lease, ticket);
        let (prefix, end) = self.queue_range(&ticket.lock);
        let claim = ticket.claim;
        // The head of the queue is enough to decide about an exclusive claim.
        let only_head = claim.is_exclusive();
        let queue = RangeRequest {
            key: prefix.clone(),
            range_end: end.clone(),
            limit: i64::from(only_head),
            sort_order: SortOrder::Ascend as i32,
            sort_target: SortTarget::Create as i32,
            keys_only: true,
            ..RangeRequest::default()
        };
        let own = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
        let session = RangeRequest { key: lease.key.clone(), keys_only: true, ..RangeRequest::default() };
        let put = PutRequest {
            key: key.clone(),
            value: self.entry_value(ticket),
            lease: lease.id,
            ..PutRequest::default()
        };
        loop {
            let revision = lease.revision();
            let mut compare = vec![Compare::mod_revision_is(&lease.key, revision)];
            if mode == Try::Once && only_head {
                compare.push(Compare::range_is_empty(&prefix, &end));
            }
            let txn = TxnRequest {
                compare,
                success: vec![
                    RequestOp::put(put.clone()),
                    RequestOp::range(queue.clone()),
                    RequestOp::range(own.clone()),
                ],
                failure: vec![
                    RequestOp::range(session.clone()),
                    RequestOp::range(own.clone()),
                    RequestOp::range(queue.clone()),
                ],
            };
            let answer = self.client.txn(txn).await?;
            let queue = if answer.succeeded {
                // Created by this transaction, unless an earlier attempt had created it.
                let own = answer.range(2).first().map_or(answer.revision(), |own| own.create_revision);
                let _ = ticket.place.set(own.cast_unsigned());
                answer.range(1)
            } else {
                let Some(session) = answer.range(0).first() else { return Err(Failure::Gone) };
                let Some(own) = answer.range(1).first() else {
                    if session.mod_revision == revision {
                        return Ok(Entered::Busy);
                    }
                    lease.observe_revision(session.mod_revision);
                    continue;
                };
                // An earlier attempt has created the entry, and its answer was lost.
                let _ = ticket.place.set(own.create_revision.cast_unsigned());
                answer.range(2)
            };
            let own = ticket.place.get().copied().unwrap_or_default();
            let earlier = queue
                .iter()
                .filter(|entry| entry.create_revision.cast_unsigned() < own)
                .filter_map(|entry| self.claim_of(&entry.key));
            if claim.is_admitted_behind(earlier)? {
                return Ok(Entered::Holds(own));
            }
            if mode == Try::Queue {
                return Ok(Entered::Waits);
            }
            self.leave_queue(lease, ticket).await?;
            return Ok(Entered::Busy);
        }
    }

    pub(super) async fn leave_queue(&self, lease: &Lease, ticket: &Ticket) -> Result<bool, Failure> {
        let key = self.entry_key(lease, ticket);
        if !ticket.in_doubt.load(Ordering::Relaxed) {
            let delete = super::wire::DeleteRangeRequest { key };
            let answer: super::wire::DeleteRangeResponse =
                self.client.call("/etcdserverpb.KV/DeleteRange", delete).await?;
            return Ok(answer.deleted > 0);
        }
        // The put of the entry may still be in flight. A write to the session's key makes it fail.
        let bump = PutRequest {
            key: lease.key.clone(),
            ignore_value: true,
            ignore_lease: true,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![Compare::exists(&lease.key)],
            success: vec![RequestOp::put(bump), RequestOp::delete(key)],
            failure: Vec::new(),
        };
        let answer = self.client.txn(txn).await?;
        if !answer.succeeded {
            return Err(Failure::Gone);
        }
        lease.observe_revision(answer.revision());
        Ok(answer.deleted(1) > 0)
    }

    pub(super) async fn delete_holders(&self, lock: &str) -> Result<ForcedRelease, Failure> {
        let entries = self.entries(lock).await?;
        let holders = admission::holders(entries.iter().map(|entry| entry.claim.demand));
        let success: Vec<RequestOp> =
            entries.into_iter().take(holders).map(|entry| RequestOp::delete(entry.key)).collect();
        let deletes = success.len();
        let answer = self.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        let holders = (0..deletes).map(|index| answer.deleted(index)).sum::<i64>();
        // Every later entry has a greater create-revision.
        Ok(ForcedRelease {
            holders: u32::try_from(holders).unwrap_or(u32::MAX),
            last_token: answer.revision().cast_unsigned(),
        })
    }
}
