//! Parses the body of a request: one JSON object, an array of objects, or one object per line. The parser validates the
//! JSON without building trees. Each event is copied into a line with its time and tenant; only line breaks are
//! removed.

use std::fmt;

use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The fields that each line has in addition to the event.
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
    /// The maximum size of all lines of one body.
    pub lines_bytes_max: usize,
    /// The maximum size of one batch of lines. A single larger line becomes its own batch.
    pub batch_bytes: usize,
    pub batch_events: usize,
}

/// Lines for one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineBatch {
    pub lines: Vec<u8>,
    pub events: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("is empty: send a JSON object, an array of objects, or a JSON object on each line")]
    Empty,
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
    /// `reserve` refused the memory for the lines.
    #[error("needs more memory than is free now; try again later")]
    NoMemory,
    /// Includes the fields that are added to each event.
    #[error("has events of more than {bytes_max} bytes, including the added fields")]
    TooLarge { bytes_max: usize },
}

/// Returns all events of a body, or its first error. Before the parser allocates memory, it calls `reserve` with the
/// number of bytes; `false` stops it.
pub fn read(
    body: &[u8],
    envelope: &Envelope,
    limits: &Limits,
    reserve: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<LineBatch>, BodyError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut writer = Writer {
        body,
        envelope,
        limits,
        finished: Vec::new(),
        current: LineBatch::default(),
        bytes: 0,
        read_bytes: 0,
        reserved_bytes: 0,
        reserve,
    };
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return Err(BodyError::Empty),
        Some(b'[') => writer.read_array()?,
        Some(_) if writer.starts_with_complete_line() => writer.read_lines()?,
        Some(_) => writer.read_values().map_err(|error| writer.first_line_error().unwrap_or(error))?,
    }
    Ok(writer.end())
}

struct Writer<'a> {
    body: &'a [u8],
    envelope: &'a Envelope,
    limits: &'a Limits,
    finished: Vec<LineBatch>,
    current: LineBatch,
    bytes: usize,
    /// Approximate number of bytes of the body read so far.
    read_bytes: usize,
    reserved_bytes: usize,
    reserve: &'a mut dyn FnMut(usize) -> bool,
}

const RESERVE_STEP_BYTES: usize = 16 << 10;

impl<'a> Writer<'a> {
    /// Whether the first line is complete, valid or not. A line that ends too early starts an object over several
    /// lines.
    fn starts_with_complete_line(&self) -> bool {
        let first = self.body.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        let parsed = serde_json::from_slice::<&RawValue>(first.unwrap_or_default());
        !parsed.is_err_and(|error| error.is_eof())
    }

    /// The error of the first line, if the second line is a complete event. The first line was then cut off, and the
    /// body is not one object over several lines.
    fn first_line_error(&self) -> Option<BodyError> {
        fn parse(line: &[u8]) -> Result<&RawValue, serde_json::Error> {
            serde_json::from_slice(line)
        }
        let lines = self.body.split(|byte| *byte == b'\n').enumerate();
        let mut lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        let (at, first) = lines.next()?;
        let problem = error_text(&parse(first).err()?);
        let (_, second) = lines.next()?;
        parse(second).ok().filter(|event| event.get().starts_with('{'))?;
        Some(BodyError::Line { line: at + 1, problem })
    }

    fn read_lines(&mut self) -> Result<(), BodyError> {
        let mut rest = self.body;
        let mut number = 1;
        while !rest.is_empty() {
            let at = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..at];
            if !line.trim_ascii().is_empty() {
                let error = |problem: String| BodyError::Line { line: number, problem };
                let event: &RawValue =
                    serde_json::from_slice(line).map_err(|json_error| error(error_text(&json_error)))?;
                self.add(event.get(), || number)?;
            }
            rest = &rest[(at + 1).min(rest.len())..];
            number += 1;
        }
        Ok(())
    }

    /// One or more objects after each other, with any line breaks.
    fn read_values(&mut self) -> Result<(), BodyError> {
        for event in serde_json::Deserializer::from_slice(self.body).into_iter::<&RawValue>() {
            let event = event.map_err(|error| line_error(&error))?;
            self.add(event.get(), || line_of(self.body, event.get()))?;
        }
        Ok(())
    }

    fn read_array(&mut self) -> Result<(), BodyError> {
        let mut array = serde_json::Deserializer::from_slice(self.body);
        let mut failure = None;
        let read =
            array.deserialize_seq(Array { writer: self, error: &mut failure }).and_then(|()| array.end());
        match (failure, read) {
            (Some(error), _) => Err(error),
            (None, Err(error)) => Err(line_error(&error)),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Adds an event. `line` returns its line number for an error.
    fn add(&mut self, event: &str, line: impl Fn() -> usize) -> Result<(), BodyError> {
        let error = |problem: String| BodyError::Line { line: line(), problem };
        if !event.starts_with('{') {
            return Err(error("an event must be a JSON object".to_owned()));
        }
        if event.len() > self.limits.event_bytes_max {
            let max = self.limits.event_bytes_max;
            return Err(error(format!(
                "an event may have at most {max} bytes, this event has {}",
                event.len()
            )));
        }
        if is_deeper_than(event.as_bytes(), self.limits.depth_max) {
            return Err(error(format!("an event may be at most {} levels deep", self.limits.depth_max)));
        }
        let length = self.envelope.before.len() + event.len() + 2;
        self.bytes += length;
        if self.bytes > self.limits.lines_bytes_max {
            return Err(BodyError::TooLarge { bytes_max: self.limits.lines_bytes_max });
        }
        let current = &mut self.current;
        let is_full = current.events >= self.limits.batch_events
            || (current.events > 0 && current.lines.len() + length > self.limits.batch_bytes);
        if is_full {
            self.finished.push(std::mem::take(current));
        }
        if self.bytes > self.reserved_bytes {
            let more = (self.bytes - self.reserved_bytes).max(RESERVE_STEP_BYTES);
            if !(self.reserve)(more) {
                return Err(BodyError::NoMemory);
            }
            self.reserved_bytes += more;
        }
        if current.events == 0 {
            // Allocates once: the rest of the body, plus space for the added fields.
            let left = self.body.len().saturating_sub(self.read_bytes);
            current.lines.reserve((left + left / 2).clamp(length, self.limits.batch_bytes.max(length)));
        }
        self.read_bytes += event.len();
        current.lines.extend_from_slice(&self.envelope.before);
        match memchr::memchr2(b'\n', b'\r', event.as_bytes()) {
            None => current.lines.extend_from_slice(event.as_bytes()),
            // In valid JSON, line breaks appear only between tokens. In strings they are escaped.
            Some(_) => current.lines.extend(event.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r'))),
        }
        current.lines.extend_from_slice(b"}\n");
        current.events += 1;
        Ok(())
    }

    fn end(mut self) -> Vec<LineBatch> {
        if self.current.events > 0 {
            self.finished.push(self.current);
        }
        self.finished
    }
}

struct Array<'w, 'a> {
    writer: &'w mut Writer<'a>,
    error: &'w mut Option<BodyError>,
}

impl<'de> Visitor<'de> for Array<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while let Some(event) = array.next_element::<&RawValue>()? {
            let body = self.writer.body;
            if let Err(error) = self.writer.add(event.get(), || line_of(body, event.get())) {
                *self.error = Some(error);
                return Err(A::Error::custom("stored in `self.error`"));
            }
        }
        Ok(())
    }
}

/// The line number of `part`, which must be a slice of `body`.
fn line_of(body: &[u8], part: &str) -> usize {
    let start = (part.as_ptr() as usize).saturating_sub(body.as_ptr() as usize).min(body.len());
    1 + memchr::memchr_iter(b'\n', &body[..start]).count()
}

fn line_error(error: &serde_json::Error) -> BodyError {
    BodyError::Line { line: error.line().max(1), problem: error_text(error) }
}

/// The error text without serde's line number, which counts from the start of the value.
fn error_text(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or(&text);
    match error.column() {
        0 => problem.to_owned(),
        column => format!("{problem} at column {column}"),
    }
}

/// `json` must be valid JSON.
fn is_deeper_than(json: &[u8], depth_max: usize) -> bool {
    let opens = |byte: &u8| matches!(byte, b'{' | b'[');
    // Most events have fewer brackets in total than the allowed depth.
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
        batch_bytes: 10_000,
        batch_events: 50,
    };

    fn read_with(body: &[u8], limits: &Limits) -> Result<Vec<LineBatch>, BodyError> {
        read(body, &Envelope::new(1_750_000_000, "a \"tenant\"", "host"), limits, &mut |_| true)
    }

    /// The bodies of all lines.
    fn events(body: impl AsRef<[u8]>) -> Result<Vec<String>, BodyError> {
        let batches = read_with(body.as_ref(), &LIMITS)?;
        let mut events = Vec::new();
        for batch in &batches {
            let text = std::str::from_utf8(&batch.lines).expect("UTF-8");
            assert!(text.ends_with('\n'));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), batch.events);
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
            Err(BodyError::Line { line, problem }) => (line, problem),
            other => panic!("{:?} gave {other:?}", String::from_utf8_lossy(body.as_ref())),
        }
    }

    #[test]
    fn an_object_an_array_and_lines_are_copied_unchanged() {
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
        assert_eq!(events(""), Err(BodyError::Empty));
        assert_eq!(events(" \n "), Err(BodyError::Empty));
    }

    #[test]
    fn the_first_bad_line_is_named_and_nothing_is_accepted() {
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
            let (found, text) = bad_line(body);
            assert_eq!((found, text.as_str()), (line, problem), "{body:?}");
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
        assert!(events(brackets).is_ok(), "brackets in strings and side by side do not count as depth");
        assert!(bad_line(format!("{{\"a\":{}}}", "[".repeat(100_000))).1.contains("expected value"));
        assert_eq!(events("{}\n".repeat(5_000)), Err(BodyError::TooLarge { bytes_max: 100_000 }));
    }

    #[test]
    fn memory_is_reserved_before_lines_are_written() {
        let body = "{}\n".repeat(1_000);
        let (mut reserved, mut refused) = (0, false);
        let result = read(body.as_bytes(), &Envelope::new(1, "t", "i"), &LIMITS, &mut |bytes| {
            reserved += bytes;
            refused = reserved > 40_000;
            !refused
        });
        assert!(refused && result == Err(BodyError::NoMemory), "{reserved}");
        let mut reserved = 0;
        let batches = read(body.as_bytes(), &Envelope::new(1, "t", "i"), &LIMITS, &mut |bytes| {
            reserved += bytes;
            true
        });
        let written: usize = batches.expect("valid events").iter().map(|batch| batch.lines.len()).sum();
        assert!(reserved >= written && reserved < written + RESERVE_STEP_BYTES, "{reserved} for {written}");
    }

    #[test]
    fn batches_respect_their_limits() {
        let batches = read_with("{}\n".repeat(120).as_bytes(), &LIMITS).expect("valid events");
        assert_eq!(batches.iter().map(|batch| batch.events).collect::<Vec<_>>(), [50, 50, 20]);
        let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(900)).repeat(30);
        let batches = read_with(long.as_bytes(), &LIMITS).expect("valid events");
        assert!(batches.iter().all(|batch| batch.lines.len() <= 10_000), "no batch exceeds its limit");
        assert_eq!(batches.iter().map(|batch| batch.events).sum::<usize>(), 30);
        let small = Limits { batch_bytes: 10, ..LIMITS };
        assert_eq!(read_with(b"{}\n{}", &small).expect("valid events").len(), 2, "a line is never split");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// No input causes a panic, and accepted lines are JSON.
        #[test]
        fn any_body_is_handled(body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "[\\[\\]{}\",:a1\\\\\n\r \t]{0,80}".prop_map(String::into_bytes),
            "(\\{\"[a-z\\\\\n]{0,5}\": ?[0-9{\\[\\]}\"]{0,6}\\}[\n,]?){0,6}".prop_map(String::into_bytes),
        ]) {
            let _ = events(&body);
        }

        /// Valid events are accepted in each format and stay unchanged.
        #[test]
        fn valid_events_are_accepted_unchanged(values in prop::collection::vec(("\\PC{0,20}", any::<i64>(), any::<bool>()), 1..20)) {
            let sent: Vec<Value> =
                values.iter().map(|(text, number, flag)| json!({ "t": text, "n": number, "f": [flag] })).collect();
            let lines: Vec<String> = sent.iter().map(Value::to_string).collect();
            let pretty: Vec<String> =
                sent.iter().map(|value| serde_json::to_string_pretty(value).expect("JSON")).collect();
            for body in [lines.join("\n"), format!("[{}]", lines.join(",")), pretty.join("\n"),
                serde_json::to_string_pretty(&sent).expect("JSON")]
            {
                let result = events(&body).expect("valid events");
                let back: Vec<Value> =
                    result.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
                prop_assert_eq!(&back, &sent);
            }
        }
    }
}
