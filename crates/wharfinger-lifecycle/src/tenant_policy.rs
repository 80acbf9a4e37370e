//! What an operator allows one tenant, and the defaults for tenants without their own rules.

use crate::media_type::TypeList;

/// The rules that are stored for a tenant. `None`: the default applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPolicy {
    pub allowed_types: Option<TypeList>,
    pub file_size_bytes_max: Option<u64>,
    /// 0: no limit.
    pub requests_per_second: Option<u32>,
}

/// A change of a tenant's policy. The outer `None` keeps a field, the inner one clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPolicyChange {
    pub allowed_types: Option<Option<TypeList>>,
    pub file_size_bytes_max: Option<Option<u64>>,
    pub requests_per_second: Option<Option<u32>>,
}

/// The rules that apply to a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectivePolicy {
    /// `None`: all types.
    pub allowed_types: Option<TypeList>,
    pub file_size_bytes_max: u64,
    /// 0: no limit.
    pub requests_per_second: u32,
}

/// The highest rate that can be set. Above it, set no limit.
pub const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;

impl TenantPolicy {
    /// A tenant's types and rate replace the defaults. Its file size can only be smaller than the default, which is the limit
    /// of the whole installation.
    pub fn over(&self, default: &EffectivePolicy) -> EffectivePolicy {
        let size_max = default.file_size_bytes_max;
        EffectivePolicy {
            allowed_types: self.allowed_types.clone().or_else(|| default.allowed_types.clone()),
            file_size_bytes_max: self.file_size_bytes_max.map_or(size_max, |own| own.min(size_max)),
            requests_per_second: self.requests_per_second.unwrap_or(default.requests_per_second),
        }
    }
}

/// Admits `per_second` requests each second, and as many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    tokens: f64,
    filled_at_ms: i64,
}

impl TokenBucket {
    pub fn full(per_second: u32, now_ms: i64) -> TokenBucket {
        TokenBucket { tokens: f64::from(per_second), filled_at_ms: now_ms }
    }

    /// Takes one token. `Err`: there is none, and the next one comes after this many seconds (at least 1).
    pub fn take(&mut self, per_second: u32, now_ms: i64) -> Result<(), u32> {
        let rate = f64::from(per_second.max(1));
        // A clock that was set back adds nothing.
        let passed_s = now_ms.saturating_sub(self.filled_at_ms).max(0) as f64 / 1_000.0;
        self.tokens = (self.tokens + passed_s * rate).min(rate);
        self.filled_at_ms = now_ms;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err((((1.0 - self.tokens) / rate).ceil() as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(list: &[&str]) -> TypeList {
        TypeList::new(list.iter().copied()).expect("valid types")
    }

    #[test]
    fn a_tenants_rules_replace_the_defaults_and_the_size_only_shrinks() {
        let default = EffectivePolicy {
            allowed_types: Some(types(&["image/*"])),
            file_size_bytes_max: 100,
            requests_per_second: 5,
        };
        assert_eq!(TenantPolicy::default().over(&default), default);
        for (own, size) in [(50, 50), (100, 100), (200, 100)] {
            let policy = TenantPolicy {
                allowed_types: Some(types(&["application/zip"])),
                file_size_bytes_max: Some(own),
                requests_per_second: Some(0),
            };
            let expected = EffectivePolicy {
                allowed_types: Some(types(&["application/zip"])),
                file_size_bytes_max: size,
                requests_per_second: 0,
            };
            assert_eq!(policy.over(&default), expected);
        }
    }

    #[test]
    fn a_bucket_admits_its_rate_and_a_burst_of_one_second() {
        let mut bucket = TokenBucket::full(3, 0);
        let mut admitted = |at: i64| (0..10).filter(|_| bucket.take(3, at).is_ok()).count();
        assert_eq!(admitted(0), 3);
        assert_eq!(admitted(333), 0);
        assert_eq!(admitted(334), 1);
        assert_eq!(admitted(999), 1);
        assert_eq!(admitted(3_600_000), 3, "a pause gives no more than one second's worth");
        assert_eq!(admitted(0), 0, "a clock that was set back");
        assert_eq!(admitted(1_000), 3);
        // A lower rate applies at once.
        assert_eq!(TokenBucket::full(1_000, 0).take(1, 0), Ok(()));
        let mut empty = TokenBucket::full(0, 0);
        assert_eq!(empty.take(1, 0), Err(1));
    }
}
