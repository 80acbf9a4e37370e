//! Limits for the data that processing creates from a file: text, chunks and vectors. They are not charged.

/// A limit that grows with the file size, and a minimum for small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedPolicy {
    /// The limit as a multiple of the file size.
    pub factor_max: u64,
    /// The minimum limit.
    pub bytes_min: u64,
}

impl DerivedPolicy {
    /// The limit for one file of a tenant with `tenant_files` files. Files get the full minimum until the minimums of all
    /// files add up to the quota. Further files get a minimum of 8 KiB. If no file is smaller than 1 KiB, the
    /// derived data of a tenant stays below `factor_max + 1` times its quota (`derived_data_of_a_tenant_is_bounded`).
    pub fn bytes_max_for(&self, file_size: u64, tenant_files: u64, tenant_limit_bytes: u64) -> u64 {
        let gets_full_minimum = tenant_files.saturating_mul(self.bytes_min) <= tenant_limit_bytes;
        let minimum =
            if gets_full_minimum { self.bytes_min } else { self.bytes_min.min(MANY_FILES_MIN_BYTES) };
        file_size.saturating_mul(self.factor_max).max(minimum)
    }

    /// The part of `bytes_max` that text may use, if each byte of text needs `beside_permille` / 1,000 bytes for other data.
    pub fn text_bytes_max(bytes_max: u64, beside_permille: u64) -> u64 {
        let all = u128::from(bytes_max) * 1_000 / (1_000 + u128::from(beside_permille));
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// Enough for a short text with one chunk and its vector.
const MANY_FILES_MIN_BYTES: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_get_the_minimum_and_large_files_the_factor() {
        let policy = DerivedPolicy { factor_max: 20, bytes_min: 1 << 20 };
        let alone = |file_size| policy.bytes_max_for(file_size, 1, 1 << 30);
        assert_eq!(alone(0), 1 << 20);
        assert_eq!(alone(1 << 20), 20 << 20);
        assert_eq!(alone(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_text_limit_leaves_space_for_chunks_and_vectors() {
        assert_eq!(DerivedPolicy::text_bytes_max(1 << 20, 0), 1 << 20);
        assert_eq!(DerivedPolicy::text_bytes_max(1 << 20, 1_000), 1 << 19);
        assert_eq!(DerivedPolicy::text_bytes_max(20 << 20, 3_000), 5 << 20);
    }

    /// The largest possible number of files of one size, each with as much derived data as allowed.
    #[test]
    fn derived_data_of_a_tenant_is_bounded() {
        let policy = DerivedPolicy { factor_max: 20, bytes_min: 1 << 20 };
        let limit = 10_u64 << 30;
        for size in [1 << 10, 64 << 10, 1 << 20, 1 << 30] {
            let files = limit / size;
            let of_one = |file| policy.bytes_max_for(size, file, limit);
            let with_floor = files.min(limit / policy.bytes_min);
            let all = with_floor * of_one(with_floor) + (files - with_floor) * of_one(files);
            assert!(all <= limit * 21, "{size}: {all}");
        }
        assert_eq!(policy.bytes_max_for(1, 10_241, limit), 8 << 10);
        assert_eq!(policy.bytes_max_for(1 << 20, 10_241, limit), 20 << 20, "the factor of large files stays");
        let low = DerivedPolicy { factor_max: 1, bytes_min: 100 };
        assert_eq!(low.bytes_max_for(1, 1_000, 1_000), 100, "the minimum is never above the setting");
    }
}
