//! The body of a request: one JSON object, an array of them, or a line each. It is looked through, not built into trees:
//! an event is passed on as it was sent, in a line that says when it came and from whom.

use std::fmt;

use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Everything a line says beside the event.
#[derive(Clone, Debug)]
pub struct Envelope {
    before: Vec<u8>,
}

impl Envelope {
    pub fn new(unix: i64, tenant: &str, instance: &str) -> Envelope {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let before =
            format!(r#"{{"ts":{unix},"tenant":{},"instance":{},"body":"#, text(tenant), text(instance));
        Envelope { before: before.into_bytes() }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub event_bytes_max: usize,
    pub depth_max: usize,
    /// Of all lines that come of one body.
    pub lines_bytes_max: usize,
    /// Lines are cut into pieces that are no larger, unless a single line is.
    pub piece_bytes: usize,
    pub piece_events: usize,
}

/// Lines that go into one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub lines: Vec<u8>,
    pub events: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    #[error("is empty: send a JSON object, an array of objects, or a JSON object on each line")]
    Empty,
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
    /// There was no room for its lines at this moment.
    #[error("there is no room for it now")]
    NoRoom,
    /// With what is added to each event.
    #[error("its events make more than {bytes_max} bytes with what is added to each")]
    TooLarge { bytes_max: usize },
}

/// All events of a body, or the first thing that is wrong with it. `room` is asked before more is written, with how many
/// bytes it takes.
pub fn read(
    body: &[u8],
    envelope: &Envelope,
    limits: &Limits,
    room: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Piece>, BadBody> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut writer = Writer {
        body,
        envelope,
        limits,
        done: Vec::new(),
        open: Piece::default(),
        bytes: 0,
        read_bytes: 0,
        held_bytes: 0,
        room,
    };
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return Err(BadBody::Empty),
        Some(b'[') => writer.take_array()?,
        Some(_) if writer.begins_with_a_whole_line() => writer.take_lines()?,
        Some(_) => writer.take_values().map_err(|bad| writer.blame_first_line().unwrap_or(bad))?,
    }
    Ok(writer.end())
}

struct Writer<'a> {
    body: &'a [u8],
    envelope: &'a Envelope,
    limits: &'a Limits,
    done: Vec<Piece>,
    open: Piece,
    bytes: usize,
    /// Of the body, about.
    read_bytes: usize,
    held_bytes: usize,
    room: &'a mut dyn FnMut(usize) -> bool,
}

const STEP_BYTES: usize = 16 << 10;

impl<'a> Writer<'a> {
    /// An object that goes on in the next line is one that was laid out for people.
    fn begins_with_a_whole_line(&self) -> bool {
        let first = self.body.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        let parsed = serde_json::from_slice::<&RawValue>(first.unwrap_or_default());
        !parsed.is_err_and(|error| error.is_eof())
    }

    /// Where the second line is an event by itself, the first one was cut off and not laid out.
    fn blame_first_line(&self) -> Option<BadBody> {
        fn whole(line: &[u8]) -> Result<&RawValue, serde_json::Error> {
            serde_json::from_slice(line)
        }
        let lines = self.body.split(|byte| *byte == b'\n').enumerate();
        let mut lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        let (at, first) = lines.next()?;
        let problem = in_a_line(&whole(first).err()?);
        let (_, second) = lines.next()?;
        whole(second).ok().filter(|event| event.get().starts_with('{'))?;
        Some(BadBody::Line { line: at + 1, problem })
    }

    fn take_lines(&mut self) -> Result<(), BadBody> {
        let mut rest = self.body;
        let mut number = 1;
        while !rest.is_empty() {
            let at = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..at];
            if !line.trim_ascii().is_empty() {
                let bad = |problem: String| BadBody::Line { line: number, problem };
                let event: &RawValue =
                    serde_json::from_slice(line).map_err(|error| bad(in_a_line(&error)))?;
                self.take(event.get(), || number)?;
            }
            rest = &rest[(at + 1).min(rest.len())..];
            number += 1;
        }
        Ok(())
    }

    /// One object or several behind each other, however they are laid out.
    fn take_values(&mut self) -> Result<(), BadBody> {
        for event in serde_json::Deserializer::from_slice(self.body).into_iter::<&RawValue>() {
            let event = event.map_err(|error| at_its_line(&error))?;
            self.take(event.get(), || line_of(self.body, event.get()))?;
        }
        Ok(())
    }

    fn take_array(&mut self) -> Result<(), BadBody> {
        let mut array = serde_json::Deserializer::from_slice(self.body);
        let mut bad = None;
        let taken = array.deserialize_seq(Array { writer: self, bad: &mut bad }).and_then(|()| array.end());
        match (bad, taken) {
            (Some(bad), _) => Err(bad),
            (None, Err(error)) => Err(at_its_line(&error)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// `line` is where it stands, should it be wrong.
    fn take(&mut self, event: &str, line: impl Fn() -> usize) -> Result<(), BadBody> {
        let bad = |problem: String| BadBody::Line { line: line(), problem };
        if !event.starts_with('{') {
            return Err(bad("an event must be a JSON object".to_owned()));
        }
        if event.len() > self.limits.event_bytes_max {
            let most = self.limits.event_bytes_max;
            return Err(bad(format!("an event may have at most {most} bytes, this one has {}", event.len())));
        }
        if is_deeper_than(event.as_bytes(), self.limits.depth_max) {
            return Err(bad(format!("an event may be at most {} levels deep", self.limits.depth_max)));
        }
        let length = self.envelope.before.len() + event.len() + 2;
        self.bytes += length;
        if self.bytes > self.limits.lines_bytes_max {
            return Err(BadBody::TooLarge { bytes_max: self.limits.lines_bytes_max });
        }
        let open = &mut self.open;
        let is_full = open.events >= self.limits.piece_events
            || (open.events > 0 && open.lines.len() + length > self.limits.piece_bytes);
        if is_full {
            self.done.push(std::mem::take(open));
        }
        if self.bytes > self.held_bytes {
            let more = (self.bytes - self.held_bytes).max(STEP_BYTES);
            if !(self.room)(more) {
                return Err(BadBody::NoRoom);
            }
            self.held_bytes += more;
        }
        if open.events == 0 {
            // Once, rather than by doubling: what is left of the body, and something for what is added.
            let left = self.body.len().saturating_sub(self.read_bytes);
            open.lines.reserve((left + left / 2).clamp(length, self.limits.piece_bytes.max(length)));
        }
        self.read_bytes += event.len();
        open.lines.extend_from_slice(&self.envelope.before);
        match memchr::memchr2(b'\n', b'\r', event.as_bytes()) {
            None => open.lines.extend_from_slice(event.as_bytes()),
            // In sound JSON they stand between the parts only: inside a text they would be escaped.
            Some(_) => open.lines.extend(event.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r'))),
        }
        open.lines.extend_from_slice(b"}\n");
        open.events += 1;
        Ok(())
    }

    fn end(mut self) -> Vec<Piece> {
        if self.open.events > 0 {
            self.done.push(self.open);
        }
        self.done
    }
}

struct Array<'w, 'a> {
    writer: &'w mut Writer<'a>,
    bad: &'w mut Option<BadBody>,
}

impl<'de> Visitor<'de> for Array<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while let Some(event) = array.next_element::<&RawValue>()? {
            let body = self.writer.body;
            if let Err(bad) = self.writer.take(event.get(), || line_of(body, event.get())) {
                *self.bad = Some(bad);
                return Err(A::Error::custom("see above"));
            }
        }
        Ok(())
    }
}

/// `part` is a part of `body`.
fn line_of(body: &[u8], part: &str) -> usize {
    let start = (part.as_ptr() as usize).saturating_sub(body.as_ptr() as usize).min(body.len());
    1 + memchr::memchr_iter(b'\n', &body[..start]).count()
}

fn at_its_line(error: &serde_json::Error) -> BadBody {
    BadBody::Line { line: error.line().max(1), problem: in_a_line(error) }
}

/// Serde counts lines of its own; ours is named already.
fn in_a_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or(&text);
    match error.column() {
        0 => problem.to_owned(),
        column => format!("{problem} at column {column}"),
    }
}

/// For JSON that was found sound.
fn is_deeper_than(json: &[u8], depth_max: usize) -> bool {
    let opens = |byte: &u8| matches!(byte, b'{' | b'[');
    // Most events have fewer brackets in all than they may have around each other.
    if json.iter().filter(|byte| opens(byte)).count() <= depth_max {
        return false;
    }
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > depth_max {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const LIMITS: Limits = Limits {
        event_bytes_max: 1_000,
        depth_max: 8,
        lines_bytes_max: 100_000,
        piece_bytes: 10_000,
        piece_events: 50,
    };

    fn read_with(body: &[u8], limits: &Limits) -> Result<Vec<Piece>, BadBody> {
        read(body, &Envelope::new(1_750_000_000, "a \"tenant\"", "host"), limits, &mut |_| true)
    }

    /// What stands in the lines as bodies.
    fn events(body: impl AsRef<[u8]>) -> Result<Vec<String>, BadBody> {
        let pieces = read_with(body.as_ref(), &LIMITS)?;
        let mut events = Vec::new();
        for piece in &pieces {
            let text = std::str::from_utf8(&piece.lines).expect("UTF-8");
            assert!(text.ends_with('\n'));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), piece.events);
            for line in lines {
                let whole: Value = serde_json::from_str(line).expect(line);
                assert_eq!(
                    (&whole["ts"], &whole["tenant"], &whole["instance"]),
                    (&json!(1_750_000_000), &json!("a \"tenant\""), &json!("host"))
                );
                let start = line.find("\"body\":").expect("a body") + 7;
                events.push(line[start..line.len() - 1].to_owned());
            }
        }
        Ok(events)
    }

    fn bad_line(body: impl AsRef<[u8]>) -> (usize, String) {
        match events(&body) {
            Err(BadBody::Line { line, problem }) => (line, problem),
            other => panic!("{:?} gave {other:?}", String::from_utf8_lossy(body.as_ref())),
        }
    }

    #[test]
    fn an_object_an_array_and_lines_are_taken_as_they_were_sent() {
        let odd = r#"{"n":1.10e+5,"s":"\u00fc\n{[","dup":1,"dup":2,"big":123456789012345678901234567890}"#;
        for (body, expected) in [
            (odd.to_owned(), vec![odd]),
            (format!("[{odd},{{}}]"), vec![odd, "{}"]),
            (format!(" [ {odd} ,\n {{}} ] "), vec![odd, "{}"]),
            (format!("{odd}\n{{}}\n"), vec![odd, "{}"]),
            (format!("\n{odd}\r\n\r\n  {{}}  "), vec![odd, "{}"]),
            ("{\n  \"a\": {\n    \"b\": 1\n  }\n}\n".to_owned(), vec![r#"{  "a": {    "b": 1  }}"#]),
            ("{\n}\n{\r\n\"a\":1}".to_owned(), vec!["{}", r#"{"a":1}"#]),
            ("\u{feff}{}".to_owned(), vec!["{}"]),
            ("[]".to_owned(), vec![]),
        ] {
            assert_eq!(events(&body).expect(&body), expected, "{body}");
        }
        assert_eq!(events(""), Err(BadBody::Empty));
        assert_eq!(events(" \n "), Err(BadBody::Empty));
    }

    #[test]
    fn the_first_bad_line_is_named_and_nothing_is_taken() {
        for (body, line, problem) in [
            ("{\"a\":1}\n{\"a\":}\n{bad\n", 2, "expected value at column 6"),
            ("{\"a\":1\n{\"a\":2}\n", 1, "EOF while parsing an object at column 6"),
            ("{}\n\n{}{}\n", 3, "trailing characters at column 3"),
            ("{}\n{\"a\":1\n", 2, "EOF while parsing an object at column 6"),
            ("{}\n7\n", 2, "an event must be a JSON object"),
            ("{}\n[{}]\n", 2, "an event must be a JSON object"),
            ("null", 1, "an event must be a JSON object"),
            ("what?", 1, "expected value at column 1"),
            ("[{},\n{},\n3]", 3, "an event must be a JSON object"),
            ("[{},\n{\"a\":01}]", 2, "invalid number at column 7"),
            ("[{}", 1, "EOF while parsing a list at column 3"),
            ("[{}]\n{}", 2, "trailing characters at column 1"),
            ("{\n\"a\": nope\n}", 2, "expected ident at column 7"),
            ("{\n\"a\": 1\n", 3, "EOF while parsing an object"),
            (
                "{\"a\":\"\u{1}\"}",
                1,
                "control character (\\u0000-\\u001F) found while parsing a string at column 6",
            ),
        ] {
            let (found, said) = bad_line(body);
            assert_eq!((found, said.as_str()), (line, problem), "{body:?}");
        }
        assert_eq!(bad_line(b"{}\n{\"a\":\"\xff\"}").0, 2);
    }

    #[test]
    fn limits_hold_for_each_event_and_for_all() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(992));
        assert_eq!(long.len(), 1_000);
        assert_eq!(events(&long).map(|all| all.len()), Ok(1));
        assert!(bad_line(format!("{{}}\n{}", long.replace("\"a\"", "\"aa\""))).1.contains("1001"));
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(events(nested(8)).is_ok());
        assert_eq!(bad_line(nested(9)), (1, "an event may be at most 8 levels deep".to_owned()));
        let brackets = r#"{"text":"[[[[[[[[[[[[[\"[[[[[","list":[[],[],[],[],[],[],[],[],[],[]]}"#;
        assert!(events(brackets).is_ok(), "brackets in a text and beside each other are no depth");
        assert!(bad_line(format!("{{\"a\":{}}}", "[".repeat(100_000))).1.contains("expected value"));
        assert_eq!(events("{}\n".repeat(5_000)), Err(BadBody::TooLarge { bytes_max: 100_000 }));
    }

    #[test]
    fn room_is_asked_for_before_lines_are_made() {
        let body = "{}\n".repeat(1_000);
        let (mut asked, mut refused) = (0, false);
        let taken = read(body.as_bytes(), &Envelope::new(1, "t", "i"), &LIMITS, &mut |bytes| {
            asked += bytes;
            refused = asked > 40_000;
            !refused
        });
        assert!(refused && taken == Err(BadBody::NoRoom), "{asked}");
        let mut asked = 0;
        let pieces = read(body.as_bytes(), &Envelope::new(1, "t", "i"), &LIMITS, &mut |bytes| {
            asked += bytes;
            true
        });
        let made: usize = pieces.expect("sound").iter().map(|piece| piece.lines.len()).sum();
        assert!(asked >= made && asked < made + STEP_BYTES, "{asked} for {made}");
    }

    #[test]
    fn pieces_fit_into_batches() {
        let pieces = read_with("{}\n".repeat(120).as_bytes(), &LIMITS).expect("sound");
        assert_eq!(pieces.iter().map(|piece| piece.events).collect::<Vec<_>>(), [50, 50, 20]);
        let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(900)).repeat(30);
        let pieces = read_with(long.as_bytes(), &LIMITS).expect("sound");
        assert!(pieces.iter().all(|piece| piece.lines.len() <= 10_000), "none is larger than a batch");
        assert_eq!(pieces.iter().map(|piece| piece.events).sum::<usize>(), 30);
        let small = Limits { piece_bytes: 10, ..LIMITS };
        assert_eq!(read_with(b"{}\n{}", &small).expect("sound").len(), 2, "a line is never cut");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Nothing panics, and what is taken are lines of JSON, whatever was sent.
        #[test]
        fn anything_may_be_sent(body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "[\\[\\]{}\",:a1\\\\\n\r \t]{0,80}".prop_map(String::into_bytes),
            "(\\{\"[a-z\\\\\n]{0,5}\": ?[0-9{\\[\\]}\"]{0,6}\\}[\n,]?){0,6}".prop_map(String::into_bytes),
        ]) {
            let _ = events(&body);
        }

        /// What is sound is taken, in each of the forms, and comes out the same.
        #[test]
        fn what_is_sound_is_taken(values in prop::collection::vec(("\\PC{0,20}", any::<i64>(), any::<bool>()), 1..20)) {
            let sent: Vec<Value> =
                values.iter().map(|(text, number, flag)| json!({ "t": text, "n": number, "f": [flag] })).collect();
            let lines: Vec<String> = sent.iter().map(Value::to_string).collect();
            let pretty: Vec<String> =
                sent.iter().map(|value| serde_json::to_string_pretty(value).expect("JSON")).collect();
            for body in [lines.join("\n"), format!("[{}]", lines.join(",")), pretty.join("\n"),
                serde_json::to_string_pretty(&sent).expect("JSON")]
            {
                let taken = events(&body).expect("sound");
                let back: Vec<Value> =
                    taken.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
                prop_assert_eq!(&back, &sent);
            }
        }
    }
}
