//! A simulated machine: a process with its own clock, which can run fast or slow. The process can be paused, and killed at
//! any await.

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

/// Initial value of all clocks, so that none starts at zero.
const CLOCK_START: Duration = Duration::from_secs(1_000);

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static CURRENT: RefCell<Option<Rc<Environment>>> = const { RefCell::new(None) };
}

/// A machine.
pub(super) struct Machine {
    environment: Rc<Environment>,
    runtime: Option<Runtime>,
    /// End of its pause.
    paused_until: Option<Duration>,
    /// Whether it was just resumed: its clock jumps.
    resumed: bool,
}

/// The environment that the code on a machine sees.
struct Environment {
    id: MachineId,
    network: Network,
    random: RefCell<Random>,
    /// Speed of its clock; 1.0 is exact.
    rate: f64,
    /// Offset of its wall clock, in nanoseconds.
    set_by: Cell<i64>,
    /// Start of the process in true time, and its clock at that time.
    began: Duration,
    clock_began: Instant,
}

impl Environment {
    /// Age of the process by its own clock at this true time.
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began).mul_f64(self.rate)
    }

    /// The true time, by a perfect outside clock.
    fn true_now(&self) -> Duration {
        self.began + self.clock_began.elapsed().div_f64(self.rate)
    }
}

impl Host for Environment {
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
        (CLOCK_START + self.clock_began.elapsed()).as_nanos() as u64
    }

    fn wall_clock(&self) -> u64 {
        self.clock().saturating_add_signed(self.set_by.get())
    }
}

/// The true time, for recording only. No simulated code depends on it.
pub(super) fn true_now() -> Duration {
    CURRENT.with_borrow(|environment| {
        environment.as_ref().map(|environment| environment.true_now()).unwrap_or_default()
    })
}

impl Machine {
    /// Starts a process on this machine.
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
        let environment = Environment {
            id,
            network: network.clone(),
            random,
            rate,
            set_by: Cell::new(0),
            began: now,
            clock_began,
        };
        Ok(Machine {
            environment: Rc::new(environment),
            runtime: Some(runtime),
            paused_until: None,
            resumed: false,
        })
    }

    fn environment<T>(&self, act: impl FnOnce(&Runtime) -> T) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        let before = CURRENT.replace(Some(self.environment.clone()));
        let result = simulation::on(self.environment.clone(), || act(runtime));
        CURRENT.set(before);
        Some(result)
    }

    /// Spawns a task on it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.environment(|runtime| drop(runtime.spawn(work)));
    }

    /// Runs until this true time, unless it is paused.
    pub(super) fn run_until(&mut self, now: Duration) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.resumed |= self.paused_until.take().is_some();
        let target = self.environment.clock_began + self.environment.age(now);
        let resumed = std::mem::take(&mut self.resumed);
        self.environment(|runtime| {
            runtime.block_on(async {
                if resumed {
                    // All timers of the pause fire at once.
                    tokio::time::advance(target.saturating_duration_since(Instant::now())).await;
                }
                tokio::time::sleep_until(target).await;
            });
        });
    }

    /// Pauses the process until then, like SIGSTOP.
    pub(super) fn pause_until(&mut self, until: Duration) {
        self.paused_until = Some(self.paused_until.map_or(until, |before| before.max(until)));
    }

    /// Sets the wall clock, which nothing may depend on.
    pub(super) fn set_clock(&self, by_ms: i64) {
        self.environment.set_by.set(self.environment.set_by.get() + by_ms * 1_000_000);
    }

    /// Kills the process at its current await.
    pub(super) fn kill(&mut self) {
        let runtime = self.runtime.take();
        let before = CURRENT.replace(Some(self.environment.clone()));
        simulation::on(self.environment.clone(), || drop(runtime));
        CURRENT.set(before);
    }
}

/// The true time after a duration by the clock of this machine.
pub(super) fn true_after(local: Duration) -> Duration {
    CURRENT.with_borrow(|environment| {
        environment
            .as_ref()
            .map(|environment| environment.true_now() + local.div_f64(environment.rate))
            .unwrap_or_default()
    })
}

/// Installs a hook that records panics on simulated machines instead of printing them. Otherwise a panic in a task could go
/// unnoticed.
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

/// The panics since the last call.
pub(super) fn panics() -> Vec<String> {
    PANICS.take()
}
