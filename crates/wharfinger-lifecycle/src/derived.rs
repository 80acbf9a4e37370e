//! How much may be made of a file. Its text and its chunks are stored beside it and are not charged.

/// A bound that grows with the file, and a floor for small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedPolicy {
    /// How many times the size of the file.
    pub factor_max: u64,
    /// So much is always allowed.
    pub bytes_min: u64,
}

impl DerivedPolicy {
    /// The same beside the other files of its tenant. The floor is for as many files as fit into the tenant's limit at that
    /// size: what is made of all of them takes at most the limit as often as a file's own size, and once more. Beyond that
    /// many files a few pages are left.
    pub fn bytes_max_beside(&self, file_size: u64, tenant_files: u64, tenant_limit_bytes: u64) -> u64 {
        let has_floor = tenant_files.saturating_mul(self.bytes_min) <= tenant_limit_bytes;
        let floor = if has_floor { self.bytes_min } else { self.bytes_min.min(FLOOR_OF_MANY_BYTES) };
        file_size.saturating_mul(self.factor_max).max(floor)
    }

    /// Of so much, how much may be text, if each byte of text makes so many thousandths of a byte beside it.
    pub fn text_bytes_max(bytes_max: u64, beside_permille: u64) -> u64 {
        let all = u128::from(bytes_max) * 1_000 / (1_000 + u128::from(beside_permille));
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// A short text with one chunk and its vector.
const FLOOR_OF_MANY_BYTES: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_have_a_floor_and_large_ones_a_factor() {
        let policy = DerivedPolicy { factor_max: 20, bytes_min: 1 << 20 };
        let alone = |file_size| policy.bytes_max_beside(file_size, 1, 1 << 30);
        assert_eq!(alone(0), 1 << 20);
        assert_eq!(alone(1 << 20), 20 << 20);
        assert_eq!(alone(u64::MAX), u64::MAX);
    }

    #[test]
    fn text_leaves_room_for_what_is_made_of_it() {
        assert_eq!(DerivedPolicy::text_bytes_max(1 << 20, 0), 1 << 20);
        assert_eq!(DerivedPolicy::text_bytes_max(1 << 20, 1_000), 1 << 19);
        assert_eq!(DerivedPolicy::text_bytes_max(20 << 20, 3_000), 5 << 20);
    }

    /// As many files as there can be of a size, each with all that it may have.
    #[test]
    fn all_files_of_a_tenant_have_a_bound() {
        let policy = DerivedPolicy { factor_max: 20, bytes_min: 1 << 20 };
        let limit = 10_u64 << 30;
        for size in [1 << 10, 64 << 10, 1 << 20, 1 << 30] {
            let files = limit / size;
            let of_one = |file| policy.bytes_max_beside(size, file, limit);
            let with_floor = files.min(limit / policy.bytes_min);
            let all = with_floor * of_one(with_floor) + (files - with_floor) * of_one(files);
            assert!(all <= limit * 21, "{size}: {all}");
        }
        assert_eq!(policy.bytes_max_beside(1, 10_241, limit), 8 << 10);
        assert_eq!(policy.bytes_max_beside(1 << 20, 10_241, limit), 20 << 20, "large files lose nothing");
        let low = DerivedPolicy { factor_max: 1, bytes_min: 100 };
        assert_eq!(low.bytes_max_beside(1, 1_000, 1_000), 100, "never more than the setting");
    }
}
