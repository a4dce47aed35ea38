//! Spans cost nothing while no subscriber collects them: with logging as in production they allocate nothing.

use lockkeeper_core::{Command, LockName, SessionId, Token};
use lockkeeper_server::effects::callers::Caller;
use lockkeeper_server::trace;
use tokio::sync::oneshot;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn release() -> Command {
    Command::Release { session: SessionId(7), lock: LockName::from("job"), token: Token(3), forget: false }
}

#[test]
fn disabled_spans_allocate_nothing() {
    // The default filter of `serve`.
    let filter: Targets = "info,openraft=error".parse().expect("a filter");
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer().with_filter(filter)).init();
    let (command, mut callers) = (release(), Vec::with_capacity(1));
    let mut caller = Some(Caller::Call(oneshot::channel().0));
    let mut round = || {
        let traced = trace::trace_request(&command, caller.take().expect("the caller"));
        callers.push(traced);
        drop(trace::batch(&callers));
        drop(trace::http("POST", "/v1/lock/release", Some("00-1-1-01")));
        caller = callers.pop();
        assert!(matches!(caller, Some(Caller::Call(_))), "the caller is unchanged");
    };
    // The first round registers the callsites.
    round();
    let began = std::time::Instant::now();
    let counted = allocation_counter::measure(|| (0..10_000).for_each(|_| round()));
    println!("{:?} for a request, its entry and its call", began.elapsed() / 10_000);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
