//! Ranges of IP addresses: `10.0.0.0/8`, or a single address.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    base: IpAddr,
    /// The length of the common prefix.
    bits: u32,
}

impl AddressRange {
    pub fn parse(text: &str) -> Option<AddressRange> {
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => (base, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().ok()?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        (bits <= width).then_some(AddressRange { base, bits })
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_addresses_with_the_same_prefix() {
        let contains = |range: &str, address: &str| {
            AddressRange::parse(range).expect(range).contains(address.parse().expect(address))
        };
        assert!(contains("10.0.0.0/8", "10.9.8.7") && !contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("10.1.2.3", "10.1.2.3") && !contains("10.1.2.3", "10.1.2.4"));
        assert!(contains("10.1.2.3", "::ffff:10.1.2.3"), "the same address, mapped to IPv6");
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(
            contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1") && contains("::/0", "::1")
        );
        for bad in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/x", "proxy.example.com"] {
            assert_eq!(AddressRange::parse(bad), None, "{bad}");
        }
    }
}
