//! The number of bytes of each tenant in a batch.

use std::collections::BTreeMap;

/// Only this many tenants of a batch are counted: the largest ones.
const TENANTS_MAX: usize = 256;

/// Counts the bytes per tenant in lines that [`Envelope`](crate::body::Envelope) wrote. Other lines do not count.
pub fn bytes_by_tenant(lines: &[u8]) -> BTreeMap<String, u64> {
    let mut by_text: BTreeMap<&[u8], u64> = BTreeMap::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if let Some(tenant) = tenant_text(line) {
            *by_text.entry(tenant).or_default() += line.len() as u64;
        }
    }
    let parsed = by_text
        .into_iter()
        .filter_map(|(text, bytes)| Some((serde_json::from_slice::<String>(text).ok()?, bytes)));
    let mut all: Vec<(String, u64)> = parsed.collect();
    all.sort_by(|(_, one), (_, other)| other.cmp(one));
    all.truncate(TENANTS_MAX);
    all.into_iter().collect()
}

/// The tenant of a line as JSON text, with its quotes.
fn tenant_text(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(br#"{"ts":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
    let text = rest[digits..].strip_prefix(br#","tenant":"#)?;
    let inner = text.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', &inner[at..])?;
        match inner[at] {
            b'"' => return Some(&text[..at + 2]),
            // A backslash escapes the next byte.
            _ if at + 2 <= inner.len() => at += 2,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Envelope, Limits, read};

    fn lines(tenant: &str, events: usize) -> Vec<u8> {
        let limits = Limits {
            event_bytes_max: 1_000,
            depth_max: 8,
            lines_bytes_max: 1 << 20,
            batch_bytes: 1 << 20,
            batch_events: 1_000,
        };
        let body = "{\"n\":1}\n".repeat(events);
        let envelope = Envelope::new(1_750_000_000, tenant, "host");
        let batches = read(body.as_bytes(), &envelope, &limits, &mut |_| true).expect("events");
        batches.into_iter().flat_map(|batch| batch.lines).collect()
    }

    #[test]
    fn every_line_counts_for_its_tenant() {
        let odd = "a \"tenant\\\" of\nlines";
        let (one, other, third) = (lines("acme", 3), lines(odd, 2), lines("acme", 1));
        let all =
            [&one[..], &other, b"{\"another\":\"form\"}\n", b"{\"ts\":1,\"tenant\":\"cut\\", &third].concat();
        let counted = bytes_by_tenant(&all);
        assert_eq!(counted.len(), 2, "{counted:?}");
        assert_eq!(counted[odd], other.len() as u64);
        assert_eq!(counted["acme"], one.len() as u64, "the line of a cut envelope does not count");
    }

    #[test]
    fn only_the_largest_tenants_are_counted() {
        let many: Vec<u8> =
            (0..300).flat_map(|n| lines(&format!("t{n}"), 1 + usize::from(n == 299))).collect();
        let counted = bytes_by_tenant(&many);
        assert_eq!(counted.len(), TENANTS_MAX);
        assert!(counted.contains_key("t299"));
    }
}
