//! Timing of heartbeats and elections, and the limits of the member protocol that derive from it.

use std::str::FromStr;
use std::time::Duration;

/// Settings that determine how long a cell waits for a silent leader. The limits of the network layer derive from them, so that
/// a cell with distant members does not mistake a slow answer for a lost one.
///
/// For `election_max` after a message of the leader a member neither votes for another node nor stands for election itself: this
/// promise is the basis of the leader's lease. After that silence it waits for another random time between `election_min` and
/// `election_max` before it stands for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Interval between the leader's heartbeats, and raft's time limit for their answers.
    pub heartbeat: Duration,
    /// Shortest random delay before an election.
    pub election_min: Duration,
    /// Longest random delay before an election, and the promise of a follower.
    pub election_max: Duration,
}

/// A set of timing values for a kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimingPreset {
    /// Members in one data center or in nearby ones: round trips of up to 50 ms.
    #[default]
    Lan,
    /// Members on one continent: round trips of up to 150 ms.
    Region,
    /// Members around the world: round trips of up to 400 ms.
    Global,
}

impl TimingPreset {
    /// All presets.
    pub const ALL: [TimingPreset; 3] = [TimingPreset::Lan, TimingPreset::Region, TimingPreset::Global];

    /// Returns its name, as in `--timing`.
    pub fn name(self) -> &'static str {
        match self {
            TimingPreset::Lan => "lan",
            TimingPreset::Region => "region",
            TimingPreset::Global => "global",
        }
    }

    /// Returns its values.
    pub fn timing(self) -> Timing {
        let of = |heartbeat, election_min, election_max| Timing {
            heartbeat: Duration::from_millis(heartbeat),
            election_min: Duration::from_millis(election_min),
            election_max: Duration::from_millis(election_max),
        };
        match self {
            // Three heartbeats fit into the promise, so two may be lost.
            TimingPreset::Lan => of(90, 200, 300),
            TimingPreset::Region => of(250, 800, 1_200),
            TimingPreset::Global => of(650, 2_000, 3_000),
        }
    }
}

impl FromStr for TimingPreset {
    type Err = String;

    fn from_str(text: &str) -> Result<TimingPreset, String> {
        let known = TimingPreset::ALL.into_iter().find(|preset| preset.name() == text);
        known.ok_or_else(|| format!("{text:?} is not a timing (try lan, region or global)"))
    }
}

impl Default for Timing {
    fn default() -> Timing {
        TimingPreset::default().timing()
    }
}

/// Shortest heartbeat interval that can be set.
const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// Longest election timeout that can be set.
const ELECTION_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Minimum number of heartbeats in an election timeout.
const HEARTBEATS_PER_PROMISE_MIN: u32 = 3;

impl Timing {
    /// Returns the preset's values, with the given ones replaced. If only one of the two is given, the other keeps the preset's ratio
    /// to it.
    pub fn custom(
        preset: TimingPreset,
        heartbeat: Option<Duration>,
        election_timeout: Option<Duration>,
    ) -> Result<Timing, String> {
        let base = preset.timing();
        let scale = |value: Duration, from: Duration, to: Duration| {
            Duration::from_millis((value.as_millis() * to.as_millis() / from.as_millis().max(1)) as u64)
        };
        let (heartbeat, election_max) = match (heartbeat, election_timeout) {
            (None, None) => return Ok(base),
            (Some(heartbeat), None) => (heartbeat, scale(base.election_max, base.heartbeat, heartbeat)),
            (None, Some(election)) => (scale(base.heartbeat, base.election_max, election), election),
            (Some(heartbeat), Some(election)) => (heartbeat, election),
        };
        let timing = Timing { heartbeat, election_min: election_max * 2 / 3, election_max };
        timing.check()?;
        Ok(timing)
    }

    fn check(&self) -> Result<(), String> {
        let Timing { heartbeat, election_max, .. } = *self;
        if heartbeat < HEARTBEAT_MIN {
            return Err(format!("a heartbeat of {heartbeat:?} is too short: set at least {HEARTBEAT_MIN:?}"));
        }
        if election_max > ELECTION_TIMEOUT_MAX {
            return Err(format!(
                "an election timeout of {election_max:?} is too long: set at most {ELECTION_TIMEOUT_MAX:?}"
            ));
        }
        if election_max < heartbeat * HEARTBEATS_PER_PROMISE_MIN {
            return Err(format!(
                "an election timeout of {election_max:?} is too short for a heartbeat of {heartbeat:?}: set at least \
                 {HEARTBEATS_PER_PROMISE_MIN} heartbeats, {:?}",
                heartbeat * HEARTBEATS_PER_PROMISE_MIN
            ));
        }
        Ok(())
    }

    /// Returns a follower's promise after each message of the leader. Openraft enforces exactly this: its leader lease is
    /// `election_timeout_max`, in whole milliseconds.
    pub fn promise(&self) -> Duration {
        Duration::from_millis(self.election_max.as_millis() as u64)
    }

    /// Returns the longest round trip between members that this timing supports: a heartbeat is answered well before the next one,
    /// and six round trips fit into the promise, so that the lease survives a lost packet.
    pub fn round_trip_max(&self) -> Duration {
        (self.heartbeat * 2 / 3).min(self.election_max / 6)
    }

    /// Time limit for opening a connection between members: TCP, TLS and the greetings take up to four round trips.
    pub(crate) fn connect_within(&self) -> Duration {
        self.election_max.max(Duration::from_secs(1))
    }

    /// Time limit for the answer to a hello.
    pub(crate) fn hello_within(&self) -> Duration {
        self.connect_within()
    }

    /// A connection with unanswered requests is pinged after this silence.
    pub(crate) fn suspect_after(&self) -> Duration {
        self.election_max / 2
    }

    /// A connection whose ping is not answered within this time counts as cut and is replaced.
    pub(crate) fn stalled_after(&self) -> Duration {
        self.election_max
    }

    /// A gRPC connection, which carries snapshots, is closed if a ping is not answered within this time.
    pub(crate) fn grpc_stalled_after(&self) -> Duration {
        self.election_max.max(Duration::from_secs(3))
    }

    /// A leader that has not heard from a majority for this time steps down. Longer than an election takes.
    pub(crate) fn quorum_lost_after(&self) -> Duration {
        self.election_max * 10 / 3
    }

    /// A follower that has not heard from its leader for this time reports no leader. Longer than an election takes.
    pub(crate) fn forget_leader_after(&self) -> Duration {
        self.election_max * 10 / 3
    }

    /// A follower that has not heard from any leader for this time accepts nodes that have left the cell: one of them may have
    /// been added again, and lead. Shorter than the time after which adding a member without progress is given up.
    pub(crate) fn departed_return_after(&self) -> Duration {
        let silence = self.forget_leader_after();
        (silence * 10).min(Duration::from_secs(15)).max(silence * 2)
    }

    /// A leader without a quorum stops its heartbeats for this time, which is enough for another one to be elected.
    pub(crate) fn heartbeat_pause(&self) -> Duration {
        self.election_max * 8 / 3
    }

    /// A member that has answered within this time counts as reachable.
    pub(crate) fn reachable_within(&self) -> Duration {
        (self.election_max * 4).max(Duration::from_secs(2))
    }

    /// Delay between the end of a follower's promise and its candidacy: the leader's last message may have reached the others a little
    /// later.
    pub(crate) fn campaign_margin(&self) -> Duration {
        self.heartbeat / 8
    }

    /// Delay between the candidacies of two followers after the leader is lost, so that they do not split the vote.
    pub(crate) fn campaign_stagger(&self) -> Duration {
        self.heartbeat / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_preset_supports_its_round_trip() {
        for (preset, round_trip) in
            [(TimingPreset::Lan, 50), (TimingPreset::Region, 150), (TimingPreset::Global, 400)]
        {
            assert!(preset.timing().round_trip_max() >= ms(round_trip), "{preset:?}");
            assert_eq!(preset.timing().check(), Ok(()));
            assert_eq!(preset.name().parse(), Ok(preset));
        }
        assert!("wan".parse::<TimingPreset>().is_err());
    }

    #[test]
    fn given_values_replace_those_of_the_preset() {
        let custom = |heartbeat, election| Timing::custom(TimingPreset::Lan, heartbeat, election);
        assert_eq!(custom(None, None), Ok(Timing::default()));
        let slower = Timing { heartbeat: ms(180), election_min: ms(400), election_max: ms(600) };
        assert_eq!(custom(Some(ms(180)), None), Ok(slower));
        assert_eq!(custom(None, Some(ms(600))), Ok(slower));
        let both = Timing { heartbeat: ms(100), election_min: ms(600), election_max: ms(900) };
        assert_eq!(custom(Some(ms(100)), Some(ms(900))), Ok(both));
        assert!(custom(Some(ms(100)), Some(ms(299))).unwrap_err().contains("300ms"));
        assert!(custom(Some(ms(1)), None).is_err());
        assert!(custom(None, Some(Duration::from_secs(61))).is_err());
    }

    #[test]
    fn raft_accepts_every_timing_that_can_be_set() {
        // Its own rule: a heartbeat plus a tick of 13/64 of it is shorter than the shortest random delay.
        for heartbeat in 20..400 {
            let Timing { heartbeat, election_min, .. } =
                Timing::custom(TimingPreset::Lan, Some(ms(heartbeat)), Some(ms(3 * heartbeat))).unwrap();
            assert!(heartbeat + heartbeat * 13 / 64 < election_min, "{heartbeat:?}");
        }
    }
}
