//! A map with limits of count, bytes and age; it drops the least recently used entries.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LruLimits {
    pub(crate) max_entries: usize,
    /// Bytes of all entries, as their owner counts them.
    pub max_bytes: usize,
    /// Time since an entry was last used.
    pub(crate) max_age: Duration,
}

#[cfg(test)]
impl LruLimits {
    /// More than a test fills.
    pub(crate) fn for_tests() -> Self {
        Self { max_entries: 100, max_bytes: 1 << 20, max_age: Duration::from_secs(3600) }
    }
}

#[derive(Debug)]
pub(crate) struct LruMap<K, V> {
    limits: LruLimits,
    entries: HashMap<K, LruEntry<V>>,
    by_last_use: BTreeMap<u64, K>,
    n_uses: u64,
    n_bytes: usize,
}

#[derive(Debug)]
struct LruEntry<V> {
    value: V,
    bytes: usize,
    last_use: u64,
    used_at: Instant,
}

impl<K: Hash + Eq + Clone, V> LruMap<K, V> {
    pub(crate) fn new(limits: LruLimits) -> Self {
        Self { limits, entries: HashMap::new(), by_last_use: BTreeMap::new(), n_uses: 0, n_bytes: 0 }
    }

    /// Keeps a value of this many bytes, instead of the one that its key had. A value above the limit is not kept.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.remove(&key);
        if bytes > self.limits.max_bytes {
            return;
        }
        self.n_uses += 1;
        self.n_bytes += bytes;
        self.by_last_use.insert(self.n_uses, key.clone());
        self.entries.insert(key, LruEntry { value, bytes, last_use: self.n_uses, used_at: Instant::now() });
        self.forget();
    }

    /// The value, which is used thereby.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.forget();
        let entry = self.entries.get_mut(key)?;
        let key = self.by_last_use.remove(&entry.last_use).expect("every entry is there by its last use");
        self.n_uses += 1;
        entry.last_use = self.n_uses;
        entry.used_at = Instant::now();
        self.by_last_use.insert(self.n_uses, key);
        Some(&entry.value)
    }

    /// Forgets a value, and gives it.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.entries.remove(key)?;
        self.by_last_use.remove(&entry.last_use);
        self.n_bytes -= entry.bytes;
        Some(entry.value)
    }

    fn forget(&mut self) {
        while let Some((_, key)) = self.by_last_use.first_key_value() {
            let is_old = self.entries[key].used_at.elapsed() > self.limits.max_age;
            if !is_old && self.entries.len() <= self.limits.max_entries && self.n_bytes <= self.limits.max_bytes {
                break;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }
}

/// Two such maps: what the background comes to pushes nothing out but its own.
#[derive(Debug)]
pub(crate) struct LruMaps<K, V> {
    foreground: LruMap<K, V>,
    background: LruMap<K, V>,
}

impl<K: Hash + Eq + Clone, V> LruMaps<K, V> {
    /// - `limits`: of the foreground; the background has a quarter more
    pub(crate) fn new(limits: LruLimits) -> Self {
        let LruLimits { max_entries, max_bytes, max_age } = limits;
        let background = LruLimits { max_entries: max_entries.div_ceil(4), max_bytes: max_bytes / 4, max_age };
        Self { foreground: LruMap::new(limits), background: LruMap::new(background) }
    }

    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize, is_background: bool) {
        let map = if is_background { &mut self.background } else { &mut self.foreground };
        map.insert(key, value, bytes);
    }

    /// The value of the foreground, else of the background; it is used thereby.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found = self.foreground.get(key);
        found.or_else(|| self.background.get(key))
    }

    /// As [`LruMap::remove`].
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (one, other) = (self.foreground.remove(key), self.background.remove(key));
        one.or(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_background_comes_to_pushes_nobody_out() {
        let mut maps = LruMaps::new(LruLimits { max_entries: 8, ..LruLimits::for_tests() });
        maps.insert(0, "asked", 1, false);
        (1..100).for_each(|i| maps.insert(i, "of a batch", 1, true));
        assert_eq!((maps.get(&0).copied(), maps.get(&97).copied()), (Some("asked"), None));
        assert_eq!((maps.get(&98).copied(), maps.remove(&99)), (Some("of a batch"), Some("of a batch")));
        assert!(maps.get(&99).is_none());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut map = LruMap::new(LruLimits { max_entries: 2, ..LruLimits::for_tests() });
        map.insert("a", 1, 0);
        map.insert("b", 2, 0);
        assert_eq!(map.get("a"), Some(&1));
        map.insert("c", 3, 0);
        assert!(map.get("b").is_none());
        assert_eq!(map.get("a"), Some(&1));
        assert_eq!(map.get("c"), Some(&3));
    }

    #[test]
    fn bytes_are_those_of_what_is_there() {
        let mut map = LruMap::new(LruLimits { max_bytes: 10, ..LruLimits::for_tests() });
        map.insert("a", 1, 6);
        map.insert("a", 2, 4);
        map.insert("b", 3, 6);
        assert_eq!((map.get("a").copied(), map.get("b").copied()), (Some(2), Some(3)));
        map.insert("c", 4, 1);
        assert!(map.get("a").is_none(), "11 bytes are too many");
        map.insert("d", 5, 11);
        assert!(map.get("d").is_none() && map.get("c").is_some(), "it would never fit");
        assert_eq!(map.remove("b"), Some(3));
        assert_eq!(map.n_bytes, 1);
    }

    #[test]
    fn what_is_old_is_gone() {
        let mut map = LruMap::new(LruLimits { max_age: Duration::ZERO, ..LruLimits::for_tests() });
        map.insert("a", 1, 0);
        std::thread::sleep(Duration::from_millis(2));
        assert!(map.get("a").is_none());
        assert!(map.by_last_use.is_empty());
    }
}
