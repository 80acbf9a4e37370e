//! What lies in the spool: names, gzip and segments of any bytes. Nothing panics, and what is salvaged is sound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharfinger_events::inspect::{Inspection, inspect, complete_lines};
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 4 {
        0 => look_through(bytes),
        // Sound gzip around anything, so that lines are reached.
        1 => look_through(&Packer::default().pack(bytes)),
        2 => {
            let (end, sound) = complete_lines(bytes);
            assert!(end <= bytes.len() && sound <= end as u64);
            assert_eq!(complete_lines(&bytes[..end]), (end, sound));
        }
        _ => {
            if let Some(name) = std::str::from_utf8(bytes).ok().and_then(BatchName::parse) {
                let place = name.object_path();
                assert!(!place.split('/').any(|part| matches!(part, "" | "." | "..")), "{place}");
                assert!(place.split('/').all(|part| part.len() <= 255), "{place}");
            }
        }
    }
});

fn look_through(gz: &[u8]) {
    if let Inspection::Damaged { readable, lines, .. } = inspect(gz) {
        assert_eq!(readable.is_some(), lines > 0);
        if let Some(readable) = readable {
            assert_eq!(inspect(&readable), Inspection::Intact { lines });
        }
    }
}
