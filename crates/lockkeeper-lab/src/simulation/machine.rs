//! A simulated machine: a process with its own clock, which can run fast or slow, stand still for a while, and be
//! killed at any await.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use lockkeeper_net::simulation::{self, Connecting, Host, Port};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use super::network::{MachineId, Network};
use super::random::Random;

/// Clocks are counted from here, so that none begins at zero.
const CLOCK_BEGINS: Duration = Duration::from_secs(1_000);

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static CURRENT: RefCell<Option<Rc<Inside>>> = const { RefCell::new(None) };
}

/// A machine.
pub(super) struct Machine {
    inside: Rc<Inside>,
    runtime: Option<Runtime>,
    /// It stands still until then.
    stopped_until: Option<Duration>,
    /// It woke up: its clock jumps.
    woke: bool,
}

/// What the code on a machine sees.
struct Inside {
    id: MachineId,
    network: Network,
    random: RefCell<Random>,
    /// How fast its clock runs: 1.0 is right.
    rate: f64,
    /// By how much people have set its other clock, in nanoseconds.
    set_by: Cell<i64>,
    /// The true time at which the process began, and its own clock then.
    began: Duration,
    clock_began: Instant,
}

impl Inside {
    /// How long the process has lived by its own clock, at this true time.
    fn lived(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began).mul_f64(self.rate)
    }

    /// The true time, as an outsider with a perfect clock sees it.
    fn true_now(&self) -> Duration {
        self.began + self.clock_began.elapsed().div_f64(self.rate)
    }
}

impl Host for Inside {
    fn connect(&self, address: &str) -> Connecting {
        self.network.connect(self.id, address)
    }

    fn bind(&self, _: &str) -> io::Result<Box<dyn Port>> {
        self.network.bind(self.id)
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().next()
    }

    fn clock(&self) -> u64 {
        (CLOCK_BEGINS + self.clock_began.elapsed()).as_nanos() as u64
    }

    fn wall_clock(&self) -> u64 {
        self.clock().saturating_add_signed(self.set_by.get())
    }
}

/// The true time, for whoever writes down what happened. Decides nothing.
pub(super) fn true_now() -> Duration {
    CURRENT.with_borrow(|inside| inside.as_ref().map(|inside| inside.true_now()).unwrap_or_default())
}

impl Machine {
    /// A process begins on this machine.
    pub(super) fn new(
        id: MachineId,
        network: &Network,
        random: Random,
        rate: f64,
        now: Duration,
    ) -> io::Result<Machine> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let clock_began = {
            let _inside = runtime.enter();
            Instant::now()
        };
        let random = RefCell::new(random);
        let inside = Inside {
            id,
            network: network.clone(),
            random,
            rate,
            set_by: Cell::new(0),
            began: now,
            clock_began,
        };
        Ok(Machine { inside: Rc::new(inside), runtime: Some(runtime), stopped_until: None, woke: false })
    }

    fn inside<T>(&self, act: impl FnOnce(&Runtime) -> T) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        let before = CURRENT.replace(Some(self.inside.clone()));
        let result = simulation::on(self.inside.clone(), || act(runtime));
        CURRENT.set(before);
        Some(result)
    }

    /// Starts something on it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inside(|runtime| drop(runtime.spawn(work)));
    }

    /// Lives until this true time, unless it stands still.
    pub(super) fn live(&mut self, now: Duration) {
        if self.stopped_until.is_some_and(|until| now < until) {
            return;
        }
        self.woke |= self.stopped_until.take().is_some();
        let target = self.inside.clock_began + self.inside.lived(now);
        let woke = std::mem::take(&mut self.woke);
        self.inside(|runtime| {
            runtime.block_on(async {
                if woke {
                    // Everything that was due meanwhile is due at once.
                    tokio::time::advance(target.saturating_duration_since(Instant::now())).await;
                }
                tokio::time::sleep_until(target).await;
            });
        });
    }

    /// Stands still until then, as a process that was sent SIGSTOP.
    pub(super) fn stop_until(&mut self, until: Duration) {
        self.stopped_until = Some(self.stopped_until.map_or(until, |before| before.max(until)));
    }

    /// People set the clock that nothing may depend on.
    pub(super) fn set_clock(&self, by_ms: i64) {
        self.inside.set_by.set(self.inside.set_by.get() + by_ms * 1_000_000);
    }

    /// The process is gone, wherever it was.
    pub(super) fn kill(&mut self) {
        let runtime = self.runtime.take();
        let before = CURRENT.replace(Some(self.inside.clone()));
        simulation::on(self.inside.clone(), || drop(runtime));
        CURRENT.set(before);
    }
}

/// When a time that is counted by the clock of this machine will be over, in true time.
pub(super) fn true_after(local: Duration) -> Duration {
    CURRENT.with_borrow(|inside| {
        inside.as_ref().map(|inside| inside.true_now() + local.div_f64(inside.rate)).unwrap_or_default()
    })
}

/// From now on a panic on a simulated machine is noted instead of printed: a task that dies of one dies quietly, and
/// whoever runs it may go on without it.
pub(super) fn watch_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            match CURRENT.with(|current| current.try_borrow().is_ok_and(|current| current.is_some())) {
                true => PANICS.with_borrow_mut(|panics| panics.push(panic.to_string())),
                false => before(panic),
            }
        }));
    });
    PANICS.take();
}

/// The panics since the last time.
pub(super) fn panics() -> Vec<String> {
    PANICS.take()
}
