//! How a large file is cut into parts.

use crate::limits::MIB;

/// What a store takes as parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLimits {
    /// Every part but the last is at least this long.
    pub part_bytes_min: u64,
    pub part_bytes_max: u64,
    pub parts_max: u32,
    /// What is longer cannot come in one piece.
    pub whole_bytes_max: u64,
}

impl PartLimits {
    /// What is longer cannot be cut.
    pub fn object_bytes_max(&self) -> u64 {
        self.part_bytes_max.saturating_mul(u64::from(self.parts_max))
    }
}

/// A cut: parts of one size, and a last one that may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub size: u64,
    pub part_size: u64,
}

/// Small enough that a lost part costs little, until the list of parts would grow too long for one answer.
const PART_BYTES_SMALL: u64 = 16 * MIB;
const PART_BYTES_LARGE: u64 = 64 * MIB;
/// Up to here the small parts are used.
const SMALL_PARTS_MAX: u64 = 1_000;

/// The size of the parts for a file, or none if it comes in one piece.
pub fn part_size(size: u64, threshold: u64, limits: &PartLimits) -> Option<u64> {
    if size <= threshold.min(limits.whole_bytes_max) || size == 0 {
        return None;
    }
    let fewest = size.div_ceil(u64::from(limits.parts_max)).div_ceil(MIB) * MIB;
    let wanted = if size <= SMALL_PARTS_MAX * PART_BYTES_SMALL { PART_BYTES_SMALL } else { PART_BYTES_LARGE };
    Some(wanted.max(fewest).clamp(limits.part_bytes_min, limits.part_bytes_max))
}

impl Cut {
    pub fn count(&self) -> u32 {
        u32::try_from(self.size.div_ceil(self.part_size.max(1))).unwrap_or(u32::MAX)
    }

    /// The length of a part, from 1; none beyond the last.
    pub fn size_of(&self, number: u32) -> Option<u64> {
        let start = u64::from(number.checked_sub(1)?).checked_mul(self.part_size)?;
        let left = self.size.checked_sub(start).filter(|left| *left > 0)?;
        Some(left.min(self.part_size))
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S3: PartLimits = PartLimits {
        part_bytes_min: 5 * MIB,
        part_bytes_max: 5 * 1_024 * MIB,
        parts_max: 10_000,
        whole_bytes_max: 5 * 1_024 * MIB,
    };

    #[test]
    fn the_largest_object_fits() {
        let size = 5 << 40;
        let part_size = part_size(size, 100 * MIB, &S3).expect("too long for one piece");
        let cut = Cut { size, part_size };
        assert!(cut.count() <= 10_000, "{}", cut.count());
        assert!(part_size <= S3.part_bytes_max);
    }

    #[test]
    fn small_files_come_in_one_piece() {
        assert_eq!(part_size(0, 0, &S3), None);
        assert_eq!(part_size(100 * MIB, 100 * MIB, &S3), None);
        assert_eq!(part_size(100 * MIB + 1, 100 * MIB, &S3), Some(16 * MIB));
        assert_eq!(part_size(6 << 30, 1 << 50, &S3), Some(16 * MIB), "no store takes this whole");
    }

    proptest! {
        #[test]
        fn the_parts_make_the_whole(size in 1u64..=5 << 40, threshold in 0u64..1 << 34) {
            let Some(part_size) = part_size(size, threshold, &S3) else {
                prop_assert!(size <= threshold);
                return Ok(());
            };
            prop_assert!((S3.part_bytes_min..=S3.part_bytes_max).contains(&part_size));
            let cut = Cut { size, part_size };
            prop_assert!(cut.count() <= S3.parts_max);
            let last = cut.size_of(cut.count()).expect("the last part");
            prop_assert!(last >= 1 && last <= part_size);
            prop_assert_eq!(u64::from(cut.count() - 1) * part_size + last, size);
            prop_assert_eq!(cut.size_of(cut.count() + 1), None);
            prop_assert_eq!(cut.size_of(0), None);
        }
    }
}
