//! Request rates of namespaces that have such a quota. Checked on the leader before the log: the table has no clock, and a
//! request refused here costs other clients nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use smol_str::SmolStr;

/// Most namespaces whose requests are counted; above it, those without recent requests are dropped.
const NAMESPACES_MAX: usize = 10_000;

/// A token bucket for each namespace.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    buckets: Mutex<HashMap<SmolStr, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    since: Instant,
}

impl Rates {
    /// Takes one request from the namespace's bucket, if there is one. The bucket holds `per_s` requests and refills in a
    /// second.
    pub(crate) fn take(&self, namespace: &str, per_s: u32, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let most = f64::from(per_s);
        if !buckets.contains_key(namespace) {
            if buckets.len() >= NAMESPACES_MAX {
                buckets.retain(|_, bucket| now.duration_since(bucket.since).as_secs_f64() < 1.0);
            }
            if buckets.len() >= NAMESPACES_MAX {
                buckets.clear();
            }
            buckets.insert(namespace.into(), Bucket { left: most, since: now });
        }
        let Some(bucket) = buckets.get_mut(namespace) else { return true };
        bucket.left = (bucket.left + now.duration_since(bucket.since).as_secs_f64() * most).min(most);
        bucket.since = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_namespace_has_its_own_rate() {
        let (rates, began) = (Rates::default(), Instant::now());
        for _ in 0..10 {
            assert!(rates.take("a", 10, began));
        }
        assert!(!rates.take("a", 10, began));
        assert!(rates.take("b", 10, began));
        let later = began + Duration::from_millis(250);
        assert!(rates.take("a", 10, later) && rates.take("a", 10, later));
        assert!(!rates.take("a", 10, later));
        assert!(!rates.take("none", 0, began));
    }

    #[test]
    fn number_of_buckets_is_bounded() {
        let (rates, now) = (Rates::default(), Instant::now());
        for number in 0..(3 * NAMESPACES_MAX) {
            rates.take(&number.to_string(), 1, now);
        }
        assert!(rates.buckets.lock().unwrap().len() <= NAMESPACES_MAX);
    }
}
