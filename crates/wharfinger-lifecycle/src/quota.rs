//! The quota of a tenant and its use. Additions are checked: an overflow is refused as over quota.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit_bytes: u64,
    /// All charged bytes.
    pub used_bytes: u64,
    /// The part of `used_bytes` that belongs to unconfirmed files, and to deleted files whose upload URL is still
    /// valid.
    pub reserved_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quota exceeded: {requested_bytes} bytes requested, {used_bytes} of {limit_bytes} bytes used")]
pub struct QuotaExceeded {
    pub used_bytes: u64,
    pub limit_bytes: u64,
    pub requested_bytes: u64,
}

impl Quota {
    pub fn reserve(self, size_bytes: u64) -> Result<Quota, QuotaExceeded> {
        let refused = QuotaExceeded {
            used_bytes: self.used_bytes,
            limit_bytes: self.limit_bytes,
            requested_bytes: size_bytes,
        };
        let used_bytes = self.used_bytes.checked_add(size_bytes).ok_or(refused)?;
        let reserved_bytes = self.reserved_bytes.checked_add(size_bytes).ok_or(refused)?;
        if used_bytes > self.limit_bytes {
            return Err(refused);
        }
        Ok(Quota { used_bytes, reserved_bytes, ..self })
    }
}

/// The given percentage of a limit, rounded down.
pub fn percent_of(limit_bytes: u64, percent: u8) -> u64 {
    let share = u128::from(limit_bytes) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn used_bytes_never_exceed_the_limit(limit in any::<u64>(), sizes in prop::collection::vec(any::<u64>(), 0..20)) {
            let mut quota = Quota { limit_bytes: limit, used_bytes: 0, reserved_bytes: 0 };
            let mut admitted: u128 = 0;
            for size in sizes {
                match quota.reserve(size) {
                    Ok(next) => {
                        admitted += u128::from(size);
                        quota = next;
                    }
                    Err(_) => prop_assert!(admitted + u128::from(size) > u128::from(limit)),
                }
                prop_assert_eq!(u128::from(quota.used_bytes), admitted);
                prop_assert!(quota.used_bytes <= limit);
            }
        }

        #[test]
        fn a_percentage_never_exceeds_the_limit(limit in any::<u64>(), percent in 0u8..=100) {
            prop_assert!(percent_of(limit, percent) <= limit);
        }
    }
}
