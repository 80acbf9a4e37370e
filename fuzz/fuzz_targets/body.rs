//! The body of a request, in each encoding. Nothing panics, and all accepted lines are JSON within the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use wharfinger_events::body::{Envelope, Limits, read};
use wharfinger_events::encoding::{Encoding, inflate};

const LIMITS: Limits =
    Limits { event_bytes_max: 4_096, depth_max: 16, lines_bytes_max: 1 << 20, batch_bytes: 8_192, batch_events: 64 };

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, body) = input;
    let encoding = [Encoding::Identity, Encoding::Gzip, Encoding::Zstd][usize::from(kind % 3)];
    let Ok(body) = inflate(encoding, body, 1 << 20, |_| true) else { return };
    let Ok(pieces) = read(&body, &Envelope::new(1_750_000_000, "tenant", "host"), &LIMITS, &mut |_| true) else { return };
    for piece in pieces {
        assert!(piece.events <= LIMITS.batch_events);
        let mut lines = 0;
        for line in piece.lines.split_inclusive(|byte| *byte == b'\n') {
            assert!(serde_json::from_slice::<&RawValue>(line).is_ok());
            lines += 1;
        }
        assert_eq!(lines, piece.events);
    }
});
