//! The files of the spool: names, gzip and segments with any bytes. Nothing panics, and every recovered line is valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wharfinger_events::inspect::{Inspection, inspect, complete_lines};
use wharfinger_events::name::BatchName;
use wharfinger_events::pack::Packer;

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 4 {
        0 => check_batch(bytes),
        // Valid gzip around any bytes, so that the code for lines is reached.
        1 => check_batch(&Packer::default().pack(bytes)),
        2 => {
            let (end, valid) = complete_lines(bytes);
            assert!(end <= bytes.len() && valid <= end as u64);
            assert_eq!(complete_lines(&bytes[..end]), (end, valid));
        }
        _ => {
            if let Some(name) = std::str::from_utf8(bytes).ok().and_then(BatchName::parse) {
                let path = name.object_path();
                assert!(!path.split('/').any(|part| matches!(part, "" | "." | "..")), "{path}");
                assert!(path.split('/').all(|part| part.len() <= 255), "{path}");
            }
        }
    }
});

fn check_batch(gz: &[u8]) {
    if let Inspection::Damaged { readable, lines, .. } = inspect(gz) {
        assert_eq!(readable.is_some(), lines > 0);
        if let Some(readable) = readable {
            assert_eq!(inspect(&readable), Inspection::Intact { lines });
        }
    }
}
