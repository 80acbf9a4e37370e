//! How a large file is split into parts for a multipart upload.

use crate::limits::MIB;

/// The limits of a store for multipart uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLimits {
    /// The minimum size of every part except the last.
    pub part_bytes_min: u64,
    pub part_bytes_max: u64,
    pub parts_max: u32,
    /// A larger object needs a multipart upload.
    pub single_put_bytes_max: u64,
}

impl PartLimits {
    /// The largest object that a multipart upload can create.
    pub fn object_bytes_max(&self) -> u64 {
        self.part_bytes_max.saturating_mul(u64::from(self.parts_max))
    }
}

/// Parts of equal size. The last part may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLayout {
    pub size: u64,
    pub part_size: u64,
}

/// A small part costs little to send again. Large files use larger parts, which keeps the list of parts short.
const PART_BYTES_SMALL: u64 = 16 * MIB;
const PART_BYTES_LARGE: u64 = 64 * MIB;
/// Files that fit into this many small parts use small parts.
const SMALL_PARTS_MAX: u64 = 1_000;

/// The part size for a file. `None`: the file is uploaded by a single PUT.
pub fn part_size(size: u64, threshold: u64, limits: &PartLimits) -> Option<u64> {
    if size <= threshold.min(limits.single_put_bytes_max) || size == 0 {
        return None;
    }
    let smallest = size.div_ceil(u64::from(limits.parts_max)).div_ceil(MIB) * MIB;
    let wanted = if size <= SMALL_PARTS_MAX * PART_BYTES_SMALL { PART_BYTES_SMALL } else { PART_BYTES_LARGE };
    Some(wanted.max(smallest).clamp(limits.part_bytes_min, limits.part_bytes_max))
}

impl PartLayout {
    pub fn count(&self) -> u32 {
        u32::try_from(self.size.div_ceil(self.part_size.max(1))).unwrap_or(u32::MAX)
    }

    /// Where part `number` starts in the file. Numbers start at 1. `None` after the last part.
    pub fn part_offset(&self, number: u32) -> Option<u64> {
        let start = u64::from(number.checked_sub(1)?).checked_mul(self.part_size)?;
        (start < self.size).then_some(start)
    }

    /// The size of part `number`. `None` after the last part.
    pub fn part_bytes(&self, number: u32) -> Option<u64> {
        self.part_offset(number).map(|start| (self.size - start).min(self.part_size))
    }

    pub fn part_numbers(&self) -> impl Iterator<Item = u32> + use<> {
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
        single_put_bytes_max: 5 * 1_024 * MIB,
    };

    #[test]
    fn the_largest_object_fits() {
        let size = 5 << 40;
        let part_size = part_size(size, 100 * MIB, &S3).expect("too large for a single PUT");
        let layout = PartLayout { size, part_size };
        assert!(layout.count() <= 10_000, "{}", layout.count());
        assert!(part_size <= S3.part_bytes_max);
    }

    #[test]
    fn small_files_need_no_parts() {
        assert_eq!(part_size(0, 0, &S3), None);
        assert_eq!(part_size(100 * MIB, 100 * MIB, &S3), None);
        assert_eq!(part_size(100 * MIB + 1, 100 * MIB, &S3), Some(16 * MIB));
        assert_eq!(
            part_size(6 << 30, 1 << 50, &S3),
            Some(16 * MIB),
            "the store takes at most 5 GiB by one PUT"
        );
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_size(size in 1u64..=5 << 40, threshold in 0u64..1 << 34) {
            let Some(part_size) = part_size(size, threshold, &S3) else {
                prop_assert!(size <= threshold);
                return Ok(());
            };
            prop_assert!((S3.part_bytes_min..=S3.part_bytes_max).contains(&part_size));
            let layout = PartLayout { size, part_size };
            prop_assert!(layout.count() <= S3.parts_max);
            let last = layout.part_bytes(layout.count()).expect("the last part");
            prop_assert!(last >= 1 && last <= part_size);
            prop_assert_eq!(layout.part_offset(layout.count()).map(|start| start + last), Some(size));
            prop_assert_eq!(layout.part_offset(1), Some(0));
            prop_assert_eq!(layout.part_offset(layout.count() + 1), None);
            prop_assert_eq!(layout.part_bytes(layout.count() + 1), None);
            prop_assert_eq!(layout.part_bytes(0), None);
        }
    }
}
