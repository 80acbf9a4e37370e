//! Checks a spooled batch before it is sent: the gzip data up to its checksum, and each line as JSON.

use std::io::{Read, Write as _};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::value::RawValue;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection {
    Intact {
        lines: u64,
    },
    Damaged {
        why: String,
        /// A new batch with the readable lines. `None` if there are none.
        readable: Option<Vec<u8>>,
        lines: u64,
    },
}

const READ_BYTES: usize = 256 << 10;
/// A longer line counts as damaged.
const LINE_BYTES_MAX: usize = 64 << 20;
/// Passed to `visit` in place of a line that is too long.
const INVALID_LINE: &[u8] = b"\0";

pub fn inspect(gz: &[u8]) -> Inspection {
    let mut lines = 0;
    let result = read_lines(gz, |line| {
        lines += 1;
        is_json(line).then_some(()).ok_or("a line is not JSON")
    });
    match result {
        Ok(()) => Inspection::Intact { lines },
        Err(why) => salvage(gz, why),
    }
}

fn salvage(gz: &[u8], why: String) -> Inspection {
    let mut readable = GzEncoder::new(Vec::new(), Compression::fast());
    let mut lines = 0;
    // The error is already known.
    let _ = read_lines(gz, |line| {
        if is_json(line) {
            lines += 1;
            // Writes to memory cannot fail.
            let _ = readable.write_all(line).and_then(|()| readable.write_all(b"\n"));
        }
        Ok(())
    });
    let readable = readable.finish().ok().filter(|_| lines > 0);
    Inspection::Damaged { why, readable, lines }
}

/// For lines that a crash may have cut off: the length up to the end of the last complete line, and the number of valid
/// lines in it. A crash cuts only the last line, so an invalid complete line is damage.
pub fn complete_lines(lines: &[u8]) -> (usize, u64) {
    let (mut start, mut valid) = (0, 0);
    for at in memchr::memchr_iter(b'\n', lines) {
        valid += u64::from(is_json(&lines[start..at]));
        start = at + 1;
    }
    (start, valid)
}

/// Validates without building a tree.
fn is_json(line: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(line).is_ok()
}

/// Calls `visit` with every line that is not blank, as far as the data can be decompressed.
fn read_lines(gz: &[u8], mut visit: impl FnMut(&[u8]) -> Result<(), &'static str>) -> Result<(), String> {
    let mut decoder = MultiGzDecoder::new(gz);
    let mut buffer = vec![0; READ_BYTES];
    // The start of a line whose end was not read yet. `too_long`: the line exceeds the limit, its rest is skipped.
    let mut partial: Vec<u8> = Vec::new();
    let mut too_long = false;
    let mut end = loop {
        match decoder.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(length) => {
                let mut rest = &buffer[..length];
                while let Some(at) = memchr::memchr(b'\n', rest) {
                    match (too_long, partial.is_empty()) {
                        (true, _) => too_long = false,
                        (false, true) => visit_line(&rest[..at], &mut visit)?,
                        (false, false) if partial.len() + at > LINE_BYTES_MAX => visit(INVALID_LINE)?,
                        (false, false) => {
                            partial.extend_from_slice(&rest[..at]);
                            visit_line(&partial, &mut visit)?;
                        }
                    }
                    partial.clear();
                    rest = &rest[at + 1..];
                }
                if partial.len() + rest.len() > LINE_BYTES_MAX {
                    too_long = true;
                    partial.clear();
                    visit(INVALID_LINE)?;
                } else if !too_long {
                    partial.extend_from_slice(rest);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Err(format!("gzip: {error}")),
        }
    };
    // A cut-off number or keyword may still be valid JSON, so only a closing bracket proves a complete line.
    let is_complete = |line: &[u8]| matches!(line.trim_ascii_end().last(), Some(b'}' | b']'));
    if (end.is_ok() || is_complete(&partial)) && !too_long {
        let visited = visit_line(&partial, &mut visit);
        end = end.and(visited);
    }
    end
}

fn visit_line(line: &[u8], visit: &mut impl FnMut(&[u8]) -> Result<(), &'static str>) -> Result<(), String> {
    match line.trim_ascii().is_empty() {
        true => Ok(()),
        false => visit(line).map_err(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pack::Packer;

    fn gzip(text: &[u8]) -> Vec<u8> {
        Packer::default().pack(text)
    }

    fn lines_of(gz: &[u8]) -> Vec<String> {
        let mut text = String::new();
        MultiGzDecoder::new(gz).read_to_string(&mut text).expect("valid gzip");
        text.lines().map(str::to_owned).collect()
    }

    fn batch(events: u64) -> (Vec<u8>, Vec<String>) {
        let lines: Vec<String> =
            (0..events).map(|id| format!("{{\"id\":{id},\"noise\":{}}}", id * 7_919 % 10_007)).collect();
        (gzip(format!("{}\n", lines.join("\n")).as_bytes()), lines)
    }

    #[test]
    fn an_intact_batch_of_any_writer_is_intact() {
        assert_eq!(inspect(&batch(1_000).0), Inspection::Intact { lines: 1_000 });
        assert_eq!(inspect(&gzip(b"{}\r\n\n  \n[1]\n\"x\"")), Inspection::Intact { lines: 3 });
        let members = [gzip(b"{\"a\":"), gzip(b"1}\n{}\n")].concat();
        assert_eq!(inspect(&members), Inspection::Intact { lines: 2 });
        assert_eq!(inspect(&gzip(b"")), Inspection::Intact { lines: 0 });
    }

    #[test]
    fn the_complete_lines_of_a_cut_batch_are_kept() {
        let (gz, all) = batch(20_000);
        let Inspection::Damaged { readable, lines, .. } = inspect(&gz[..gz.len() / 2]) else {
            panic!("half a batch is damaged");
        };
        let kept = lines_of(&readable.expect("some lines"));
        assert_eq!(kept.len() as u64, lines);
        assert!(lines > 1_000 && lines < 20_000, "{lines}");
        assert_eq!(kept, all[..kept.len()]);
    }

    #[test]
    fn bad_lines_do_not_affect_the_others() {
        let Inspection::Damaged { why, readable, lines } =
            inspect(&gzip(b"{\"a\":1}\n{\"a\":\n\xff\xfe\n{\"a\":2}\n"))
        else {
            panic!("two lines are bad");
        };
        assert_eq!((why.as_str(), lines), ("a line is not JSON", 2));
        assert_eq!(lines_of(&readable.expect("two lines")), ["{\"a\":1}", "{\"a\":2}"]);
        for unreadable in [&b""[..], b"\x1f", b"not gzip", &gzip(b"bad\nworse\n")] {
            let inspection = inspect(unreadable);
            assert!(
                matches!(inspection, Inspection::Damaged { readable: None, lines: 0, .. }),
                "{unreadable:?}: {inspection:?}"
            );
        }
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_not_counted() {
        assert_eq!(complete_lines(b"{\"a\":1}\n{\"a\":2}\n{\"a\":"), (16, 2));
        assert_eq!(
            complete_lines(b"{\"a\":1}\n{\"a\":2}"),
            (8, 1),
            "the end of the last line may be missing"
        );
        assert_eq!(complete_lines(b"{}\n\0\0\0\0"), (3, 1));
        assert_eq!(complete_lines(b"{}\n\0\0\n{}\n"), (9, 2), "damage in the middle stays in the data");
        assert_eq!(complete_lines(b"{}\n{\"a\":#}\n"), (11, 1), "damage at the end stays in the data");
        assert_eq!(complete_lines(b""), (0, 0));
    }

    #[test]
    fn a_line_that_is_too_long_is_bad_and_the_next_line_is_read() {
        let long = [b"\"".to_vec(), vec![b'x'; LINE_BYTES_MAX + 1], b"\"\n{}\n".to_vec()].concat();
        let Inspection::Damaged { readable, lines: 1, .. } = inspect(&gzip(&long)) else {
            panic!("one line is too long");
        };
        assert_eq!(lines_of(&readable.expect("a line")), ["{}"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// No damage causes a panic, and all kept lines are JSON.
        #[test]
        fn any_damage_is_handled(
            events in 0_u64..400,
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            cuts in any::<bool>(),
        ) {
            let (mut gz, all) = batch(events);
            for (at, byte) in flips {
                let at = at.index(gz.len());
                gz[at] = byte;
            }
            if cuts {
                gz.truncate(cut.index(gz.len()));
            }
            match inspect(&gz) {
                Inspection::Intact { lines } => prop_assert_eq!(lines, all.len() as u64),
                Inspection::Damaged { readable, lines, .. } => {
                    let kept = readable.map(|gz| lines_of(&gz)).unwrap_or_default();
                    prop_assert_eq!(kept.len() as u64, lines);
                    prop_assert!(kept.iter().all(|line| is_json(line.as_bytes())));
                }
            }
        }

        #[test]
        fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..300), header in any::<bool>()) {
            let head: &[u8] = if header { b"\x1f\x8b\x08\0\0\0\0\0\0\xff" } else { b"" };
            inspect(&[head, &bytes].concat());
        }
    }
}
