//! Ids of requests, answers and items: unique, and unpredictable without this process's secret.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// Makes ids: digests of a secret and a count.
#[derive(Debug)]
pub struct Ids {
    secret: [u8; 32],
    count: AtomicU64,
}

impl Default for Ids {
    /// Takes the secret from the random keys that the standard library gets from the system for its hash maps.
    fn default() -> Self {
        let keys = RandomState::new();
        let mut secret = [0; 32];
        for (i, part) in secret.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&keys.hash_one(i).to_ne_bytes());
        }
        Self { secret, count: AtomicU64::new(0) }
    }
}

impl Ids {
    /// The next id: the prefix and 32 hexadecimal digits.
    pub(crate) fn next(&self, prefix: &str) -> String {
        let mut id = String::with_capacity(prefix.len() + 32);
        id.push_str(prefix);
        for byte in &self.random()[..16] {
            let _ = write!(id, "{byte:02x}"); // a string takes all
        }
        id
    }

    /// A random number: the seed of a request that names none.
    pub(crate) fn seed(&self) -> u64 {
        let bytes = self.random();
        u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
    }

    /// Bytes for a secret key.
    pub(crate) fn random(&self) -> [u8; 32] {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Sha256::new().chain_update(self.secret).chain_update(count.to_le_bytes()).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_never_the_same() {
        let (one, other) = (Ids::default(), Ids::default());
        let all: HashSet<String> = (0..1000).flat_map(|_| [one.next("r_"), other.next("r_")]).collect();
        assert_eq!(all.len(), 2000);
        assert!(all.iter().all(|id| id.len() == 34 && id.starts_with("r_")));
    }
}
