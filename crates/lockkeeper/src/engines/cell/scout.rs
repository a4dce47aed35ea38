//! Does our node still lead? A node that was stopped, or cut off from the others, keeps its connections and says
//! nothing, or only that it can do nothing. When answers are due and none comes, we ask our node for a sign of life,
//! and then another node who leads. Only if that is somebody else do we leave: a node that is merely slow is not helped by clients that all
//! come back at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::v1;
use lockkeeper_api::v1::answer::Kind as Answered;
use lockkeeper_api::v1::operation::Kind as Asked;
use smol_str::SmolStr;

use super::connection::Connection;
use super::transport::{Refused, Transport};
use super::work::{Entry, Work};
use crate::clock::Moment;

/// After this silence, with something to be answered, our node is asked for a sign of life. Doubled each time it
/// gives one: who waits in a queue hears nothing for long.
const PING_AFTER: Duration = Duration::from_millis(200);
const PING_LONGEST: Duration = Duration::from_secs(2);
/// If that is not answered within this time, another node is asked. Doubled each time our node leads after all.
const DOUBT_AFTER: Duration = Duration::from_millis(200);
const DOUBT_LONGEST: Duration = Duration::from_secs(5);
/// How long another node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(400);

/// Whom another node calls the leader: its id and address.
pub(super) type Verdict = Option<(u64, SmolStr)>;

/// What we know of our node's life.
pub(super) struct Doubt {
    /// When it was last heard.
    heard: Moment,
    /// When it was asked for a sign of life that has not come.
    asked: Option<Moment>,
    silence: Duration,
    patience: Duration,
    attempt: usize,
    pub(super) scout: Option<Pin<Box<dyn Future<Output = Verdict> + Send>>>,
}

impl Doubt {
    pub(super) fn none(now: Moment) -> Doubt {
        Doubt { heard: now, asked: None, silence: PING_AFTER, patience: DOUBT_AFTER, attempt: 0, scout: None }
    }

    /// It has said something.
    pub(super) fn dispel(&mut self, now: Moment) {
        self.heard = now;
        if self.asked.is_some() {
            let silence = (self.silence * 2).min(PING_LONGEST);
            *self = Doubt { attempt: self.attempt, silence, ..Doubt::none(now) };
        }
    }

    /// It lives, but says that it can do nothing for us: somebody else may lead.
    pub(super) fn grow(&mut self, now: Moment) {
        self.heard = now;
        self.asked.get_or_insert(now);
    }

    /// Something was asked that should be answered soon.
    pub(super) fn expect(&mut self, now: Moment, first: bool) {
        self.silence = PING_AFTER;
        if first {
            self.heard = self.heard.max(now);
        }
    }
}

impl Connection {
    /// When our node's life has to be looked at next.
    pub(super) fn doubt_due(&self) -> Moment {
        if !self.is_up() || self.doubt.scout.is_some() || !self.transport.has_choice() {
            return Moment::NEVER;
        }
        match self.doubt.asked {
            Some(asked) => asked.plus(self.doubt.patience),
            None if self.work.is_empty() => Moment::NEVER,
            None => self.doubt.heard.plus(self.doubt.silence),
        }
    }

    /// Asks for a sign of life, or another node.
    pub(super) fn look_for_life(&mut self, now: Moment) {
        match self.doubt.asked {
            None if now.since(self.doubt.heard) < self.doubt.silence || self.work.is_empty() => {}
            None => {
                self.doubt.asked = Some(now);
                let number = self.next_number();
                // A renewal of nothing: only a node that leads, and can prove it, answers it.
                let ping = Work::KeepAlive { sessions: Vec::new(), sent_at: now };
                self.submit(number, Entry::new(number, Moment::NEVER, ping), now);
            }
            Some(_) => {
                self.doubt.attempt += 1;
                self.doubt.scout = Some(Box::pin(who_leads(Arc::clone(&self.transport), self.doubt.attempt)));
            }
        }
    }

    /// Another node has said who leads.
    pub(super) fn on_verdict(&mut self, verdict: Verdict, now: Moment) {
        self.doubt.scout = None;
        // It has answered meanwhile.
        if self.doubt.asked.is_none() {
            return;
        }
        match verdict {
            Some((leader, address)) if self.node != Some(leader) => {
                let why = Refused::because("another node leads the cell now");
                self.drop_link(&Refused { leader: Some(address), ..why }, now);
            }
            // Nobody leads: that will be over soon.
            None => self.doubt.asked = Some(now),
            Some(_) => {
                self.doubt.asked = Some(now);
                self.doubt.patience = (self.doubt.patience * 2).min(DOUBT_LONGEST);
            }
        }
    }
}

/// Whether a node says nothing but that it cannot do what was asked, as one does that was cut off from the others.
pub(super) fn has_nothing_to_give(frame: &v1::ServerFrame) -> bool {
    let unavailable = |answer: &v1::Answer| matches!(&answer.kind, Some(Answered::Error(error)) if error.code == "unavailable");
    frame.events.is_empty() && !frame.answers.is_empty() && frame.answers.iter().all(unavailable)
}

async fn who_leads(transport: Arc<dyn Transport>, attempt: usize) -> Verdict {
    let ask = async {
        let mut link = transport.open(attempt, None).await.ok()?;
        let status = v1::Operation { id: 1, kind: Some(Asked::Status(v1::StatusRequest {})) };
        link.frames.send(v1::ClientFrame { operations: vec![status] });
        loop {
            if link.frames.is_behind() {
                link.frames.room().await;
            }
            for answer in link.answers.next().await.ok()?.answers {
                if let Some(Answered::Status(status)) = answer.kind {
                    let leader = status.members.iter().find(|member| member.node_id == status.leader)?;
                    return Some((leader.node_id, SmolStr::new(&leader.address)));
                }
            }
        }
    };
    tokio::time::timeout(ANSWER_WITHIN, ask).await.ok().flatten()
}
