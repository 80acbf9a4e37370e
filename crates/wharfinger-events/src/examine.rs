//! A batch that lay on disk, looked through to its last byte before it goes on: gzip to its checksum, each line JSON.

use std::io::{Read, Write as _};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::value::RawValue;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Examined {
    Sound {
        lines: u64,
    },
    Damaged {
        why: String,
        /// The lines that can be read, as a batch of their own; none if there are none.
        readable: Option<Vec<u8>>,
        lines: u64,
    },
}

const STEP_BYTES: usize = 256 << 10;
/// No line of a sound batch is longer.
const LINE_BYTES_MAX: usize = 64 << 20;
/// Shown in the place of one that is.
const NO_LINE: &[u8] = b"\0";

pub fn examine(gz: &[u8]) -> Examined {
    let mut lines = 0;
    let seen = read_lines(gz, |line| {
        lines += 1;
        is_json(line).then_some(()).ok_or("a line is not JSON")
    });
    match seen {
        Ok(()) => Examined::Sound { lines },
        Err(why) => salvage(gz, why),
    }
}

fn salvage(gz: &[u8], why: String) -> Examined {
    let mut readable = GzEncoder::new(Vec::new(), Compression::fast());
    let mut lines = 0;
    // How it ends is known by now.
    let _ = read_lines(gz, |line| {
        if is_json(line) {
            lines += 1;
            // Into memory: it does not fail.
            let _ = readable.write_all(line).and_then(|()| readable.write_all(b"\n"));
        }
        Ok(())
    });
    let readable = readable.finish().ok().filter(|_| lines > 0);
    Examined::Damaged { why, readable, lines }
}

/// Of lines that a crash may have cut off: how many bytes reach to the end of the last whole one, and how many of them are
/// sound. Where one is not, that is damage, and no crash's doing.
pub fn whole_lines(lines: &[u8]) -> (usize, u64) {
    let (mut start, mut sound) = (0, 0);
    for at in memchr::memchr_iter(b'\n', lines) {
        sound += u64::from(is_json(&lines[start..at]));
        start = at + 1;
    }
    (start, sound)
}

/// Not a tree: only whether it could be one.
fn is_json(line: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(line).is_ok()
}

/// Shows every line that is not blank, as far as they can be inflated.
fn read_lines(gz: &[u8], mut show: impl FnMut(&[u8]) -> Result<(), &'static str>) -> Result<(), String> {
    let mut decoder = MultiGzDecoder::new(gz);
    let mut step = vec![0; STEP_BYTES];
    // The beginning of a line whose end has not come yet; too long to be one once `overlong`.
    let mut begun: Vec<u8> = Vec::new();
    let mut overlong = false;
    let mut end = loop {
        match decoder.read(&mut step) {
            Ok(0) => break Ok(()),
            Ok(length) => {
                let mut rest = &step[..length];
                while let Some(at) = memchr::memchr(b'\n', rest) {
                    match (overlong, begun.is_empty()) {
                        (true, _) => overlong = false,
                        (false, true) => show_line(&rest[..at], &mut show)?,
                        (false, false) if begun.len() + at > LINE_BYTES_MAX => show(NO_LINE)?,
                        (false, false) => {
                            begun.extend_from_slice(&rest[..at]);
                            show_line(&begun, &mut show)?;
                        }
                    }
                    begun.clear();
                    rest = &rest[at + 1..];
                }
                if begun.len() + rest.len() > LINE_BYTES_MAX {
                    overlong = true;
                    begun.clear();
                    show(NO_LINE)?;
                } else if !overlong {
                    begun.extend_from_slice(rest);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break Err(format!("gzip: {error}")),
        }
    };
    // A number or a word that was cut off is another number or word.
    let closes = |line: &[u8]| matches!(line.trim_ascii_end().last(), Some(b'}' | b']'));
    if (end.is_ok() || closes(&begun)) && !overlong {
        let shown = show_line(&begun, &mut show);
        end = end.and(shown);
    }
    end
}

fn show_line(line: &[u8], show: &mut impl FnMut(&[u8]) -> Result<(), &'static str>) -> Result<(), String> {
    match line.trim_ascii().is_empty() {
        true => Ok(()),
        false => show(line).map_err(str::to_owned),
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
        MultiGzDecoder::new(gz).read_to_string(&mut text).expect("sound gzip");
        text.lines().map(str::to_owned).collect()
    }

    fn batch(events: u64) -> (Vec<u8>, Vec<String>) {
        let lines: Vec<String> =
            (0..events).map(|id| format!("{{\"id\":{id},\"noise\":{}}}", id * 7_919 % 10_007)).collect();
        (gzip(format!("{}\n", lines.join("\n")).as_bytes()), lines)
    }

    #[test]
    fn a_sound_batch_is_sound_whoever_wrote_it() {
        assert_eq!(examine(&batch(1_000).0), Examined::Sound { lines: 1_000 });
        assert_eq!(examine(&gzip(b"{}\r\n\n  \n[1]\n\"x\"")), Examined::Sound { lines: 3 });
        let members = [gzip(b"{\"a\":"), gzip(b"1}\n{}\n")].concat();
        assert_eq!(examine(&members), Examined::Sound { lines: 2 });
        assert_eq!(examine(&gzip(b"")), Examined::Sound { lines: 0 });
    }

    #[test]
    fn of_a_cut_batch_the_whole_lines_are_kept() {
        let (gz, all) = batch(20_000);
        let Examined::Damaged { readable, lines, .. } = examine(&gz[..gz.len() / 2]) else {
            panic!("half a batch is damaged");
        };
        let kept = lines_of(&readable.expect("some lines"));
        assert_eq!(kept.len() as u64, lines);
        assert!(lines > 1_000 && lines < 20_000, "{lines}");
        assert_eq!(kept, all[..kept.len()]);
    }

    #[test]
    fn bad_lines_do_not_take_the_others_with_them() {
        let Examined::Damaged { why, readable, lines } =
            examine(&gzip(b"{\"a\":1}\n{\"a\":\n\xff\xfe\n{\"a\":2}\n"))
        else {
            panic!("two lines are bad");
        };
        assert_eq!((why.as_str(), lines), ("a line is not JSON", 2));
        assert_eq!(lines_of(&readable.expect("two lines")), ["{\"a\":1}", "{\"a\":2}"]);
        for nothing in [&b""[..], b"\x1f", b"not gzip", &gzip(b"bad\nworse\n")] {
            let examined = examine(nothing);
            assert!(
                matches!(examined, Examined::Damaged { readable: None, lines: 0, .. }),
                "{nothing:?}: {examined:?}"
            );
        }
    }

    #[test]
    fn what_a_crash_cut_off_is_not_counted() {
        assert_eq!(whole_lines(b"{\"a\":1}\n{\"a\":2}\n{\"a\":"), (16, 2));
        assert_eq!(whole_lines(b"{\"a\":1}\n{\"a\":2}"), (8, 1), "its end may be missing");
        assert_eq!(whole_lines(b"{}\n\0\0\0\0"), (3, 1));
        assert_eq!(whole_lines(b"{}\n\0\0\n{}\n"), (9, 2), "what is in the middle stays to be seen");
        assert_eq!(whole_lines(b"{}\n{\"a\":#}\n"), (11, 1), "and so does what is at the end");
        assert_eq!(whole_lines(b""), (0, 0));
    }

    #[test]
    fn a_line_that_is_too_long_is_bad_and_the_next_one_is_not() {
        let long = [b"\"".to_vec(), vec![b'x'; LINE_BYTES_MAX + 1], b"\"\n{}\n".to_vec()].concat();
        let Examined::Damaged { readable, lines: 1, .. } = examine(&gzip(&long)) else {
            panic!("one line is too long");
        };
        assert_eq!(lines_of(&readable.expect("a line")), ["{}"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever happens to a batch: nothing panics, and what is kept is JSON.
        #[test]
        fn any_damage_is_survived(
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
            match examine(&gz) {
                Examined::Sound { lines } => prop_assert_eq!(lines, all.len() as u64),
                Examined::Damaged { readable, lines, .. } => {
                    let kept = readable.map(|gz| lines_of(&gz)).unwrap_or_default();
                    prop_assert_eq!(kept.len() as u64, lines);
                    prop_assert!(kept.iter().all(|line| is_json(line.as_bytes())));
                }
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), header in any::<bool>()) {
            let head: &[u8] = if header { b"\x1f\x8b\x08\0\0\0\0\0\0\xff" } else { b"" };
            examine(&[head, &bytes].concat());
        }
    }
}
