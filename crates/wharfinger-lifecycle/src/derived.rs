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
    /// What may be made of a file of this size.
    pub fn bytes_max(&self, file_size: u64) -> u64 {
        file_size.saturating_mul(self.factor_max).max(self.bytes_min)
    }

    /// Of that, how much may be text, if each byte of text makes so many thousandths of a byte beside it.
    pub fn text_bytes_max(&self, file_size: u64, beside_permille: u64) -> u64 {
        let all = u128::from(self.bytes_max(file_size)) * 1_000 / (1_000 + u128::from(beside_permille));
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_have_a_floor_and_large_ones_a_factor() {
        let policy = DerivedPolicy { factor_max: 20, bytes_min: 1 << 20 };
        assert_eq!(policy.bytes_max(0), 1 << 20);
        assert_eq!(policy.bytes_max(1 << 20), 20 << 20);
        assert_eq!(policy.bytes_max(u64::MAX), u64::MAX);
        assert_eq!(policy.text_bytes_max(0, 0), 1 << 20);
        assert_eq!(policy.text_bytes_max(0, 1_000), 1 << 19);
        assert_eq!(policy.text_bytes_max(1 << 20, 3_000), 5 << 20);
    }
}
