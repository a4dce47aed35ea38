//! The conditions of a run, chosen by its seed.

use std::time::Duration;

use super::distance::Distance;
use super::faults::{self, Emphasis, Fault, FaultKinds};
use super::network::{MachineId, Network, Quality};
use super::random::Random;
use super::upgrades::Upgrades;
use super::{CLIENTS_FROM, ClientKind, NODES};

/// Number of commands between snapshots in a run without any.
pub(super) const NO_SNAPSHOTS: u64 = 100_000;

/// The conditions of a run.
pub(super) struct Setup {
    pub(super) network: Network,
    pub(super) kinds: FaultKinds,
    pub(super) emphasis: Emphasis,
    pub(super) distance: Distance,
    pub(super) clocks_within_drift: bool,
    pub(super) clients: Vec<(MachineId, ClientKind)>,
    pub(super) ttl: Duration,
    pub(super) faults: Vec<(Duration, Fault)>,
    pub(super) step: Duration,
    pub(super) snapshot_every: u64,
    pub(super) has_quota: bool,
    pub(super) upgrades: Upgrades,
    /// For people.
    pub(super) description: String,
}

impl Setup {
    pub(super) fn at_random(seed: u64, random: &mut Random, duration: Duration) -> Setup {
        let emphasis = Emphasis::at_random(seed);
        let calm = emphasis.is_scenario();
        let mut quality = Quality {
            delay_min_ms: 0,
            delay_max_ms: *random.one_of(&[1, 5, 20]),
            lost_once_in: *random.one_of(&[0, 0, 200, 50]),
        };
        if calm {
            quality.lost_once_in = 0;
        }
        let distance = match emphasis {
            Emphasis::QuietCell => Distance::of_quiet_cell(seed),
            _ if calm => Distance::Near,
            _ => Distance::at_random(seed),
        };
        let network = Network::new(random.fork(), quality);
        network.set_distance(distance.one_way());
        let kinds = FaultKinds::at_random(random);
        let kinds = if calm { FaultKinds::NONE } else { kinds };
        // Clocks differ by up to half a percent from the true time, so by up to one percent from each other, as assumed.
        // In some runs they drift further: then only tokens protect, and must.
        let clocks_within_drift = !random.once_in(8) || calm;
        let clients = clients(emphasis, random.below(3) as u32);
        let ids: Vec<MachineId> = clients.iter().map(|(id, _)| *id).collect();
        let ttl = Duration::from_millis(*random.one_of(&[800, 2_000, 4_000]));
        let mut faults = faults::plan(random, kinds, &NODES, &ids, duration);
        faults.extend(emphasis.faults(seed, &NODES, &ids, duration));
        faults.extend(distance.faults(seed, ids.len()));
        let step = Duration::from_millis(*random.one_of(&[1, 2, 5]));
        let snapshot_every = *random.one_of(&[40, 200, NO_SNAPSHOTS]);
        let quota = !calm && Random::new(seed ^ 0x0071_756f_7461).once_in(3);
        if quota {
            faults.extend(faults::set_quota());
        }
        faults.sort_by_key(|(at, _)| *at);
        let upgrades = Upgrades::at_random(seed, kinds, calm);
        let description = format!(
            "{kinds:?}, {emphasis:?}, {quality:?}, {distance:?}, {upgrades:?}, TTL {ttl:?}, {} clients, \
             a snapshot every {snapshot_every} commands, a quota: {quota}, clocks {}",
            ids.len(),
            if clocks_within_drift { "within the assumed drift" } else { "beyond the assumed drift" }
        );
        Setup {
            network,
            kinds,
            emphasis,
            distance,
            clocks_within_drift,
            clients,
            ttl,
            faults,
            step,
            snapshot_every,
            has_quota: quota,
            upgrades,
            description,
        }
    }
}

/// Three to five clients, of which the last one is plain. Scenarios have their own.
fn clients(emphasis: Emphasis, more: u32) -> Vec<(MachineId, ClientKind)> {
    match emphasis {
        Emphasis::RegainedTerm => {
            vec![(CLIENTS_FROM, ClientKind::Waiter), (CLIENTS_FROM + 1, ClientKind::Plain)]
        }
        Emphasis::QuietCell => vec![(CLIENTS_FROM, ClientKind::Library)],
        Emphasis::FarHolder => {
            vec![(CLIENTS_FROM, ClientKind::Waiter), (CLIENTS_FROM + 1, ClientKind::Library)]
        }
        Emphasis::Nothing | Emphasis::LostMajorities | Emphasis::Lag | Emphasis::Transfers => {
            let plain = CLIENTS_FROM + 3 + more;
            let library = (CLIENTS_FROM..plain).map(|id| (id, ClientKind::Library));
            library.chain([(plain, ClientKind::Plain)]).collect()
        }
    }
}
