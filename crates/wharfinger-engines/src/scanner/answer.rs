//! What clamd says, and what it means here. Only errors about the stream itself can be the file's own fault.

use super::{ScanError, Verdict};

const TOO_LARGE: &str = "INSTREAM size limit exceeded. ERROR";

const TOLD_CHARS_MAX: usize = 120;

/// What clamd says of files, as far as it is not about the machine it runs on: no room, no memory, no permission.
const OF_THE_FILE: [&str; 2] = ["Can't unpack", "Can't parse"];

/// The answer to a stream that was sent to its end.
pub(super) fn meaning(answer: &str) -> Result<Verdict, ScanError> {
    if answer == TOO_LARGE {
        return Err(ScanError::TooLarge(format!("{} (StreamMaxLength)", answer.trim_end_matches(". ERROR"))));
    }
    let Some(of_stream) = answer.strip_prefix("stream: ") else {
        return Err(if answer.ends_with("ERROR") || answer == "COMMAND READ TIMED OUT" {
            ScanError::Unavailable(format!("clamd answered {:?}", clipped(answer)))
        } else {
            misplaced(answer)
        });
    };
    if of_stream == "OK" {
        return Ok(Verdict::Clean);
    }
    if let Some(signature) = of_stream.strip_suffix(" FOUND").filter(|name| !name.trim().is_empty()) {
        return Ok(Verdict::Infected { signature: signature.to_owned() });
    }
    let Some(why) = of_stream.strip_suffix(" ERROR") else { return Err(misplaced(answer)) };
    Err(match why {
        "Exceeded max scan size" => ScanError::TooLarge(format!("{why} (MaxScanSize)")),
        why if why.starts_with("Can't ") && !OF_THE_FILE.iter().any(|start| why.starts_with(start)) => {
            ScanError::Unavailable(why.to_owned())
        }
        why => ScanError::Refused(why.to_owned()),
    })
}

/// The answer to a stream of which clamd cannot know the end: it may complain, and it may have found something.
pub(super) fn early_meaning(answer: &str) -> Result<Verdict, ScanError> {
    match meaning(answer)? {
        Verdict::Clean => {
            Err(ScanError::Unavailable("clamd called the file clean before it had seen all of it".into()))
        }
        found => Ok(found),
    }
}

/// Somebody else lives there, or a clamd that does not know the command: files have to wait until that is mended.
pub(super) fn misplaced(answer: &str) -> ScanError {
    ScanError::Unavailable(format!("this is no answer of clamd's, check its address: {:?}", clipped(answer)))
}

pub(super) fn clipped(answer: &str) -> String {
    answer.chars().take(TOLD_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_ok_is_clean() {
        assert_eq!(meaning("stream: OK"), Ok(Verdict::Clean));
        for answer in [
            "",
            "OK",
            "stream: ok",
            "stream: OK ",
            " stream: OK",
            "stream: OK\n",
            "stream: OK FOUND ERROR",
            "1: stream: OK",
            "stream: FOUND",
            "stream:  FOUND",
            "PONG",
            "UNKNOWN COMMAND",
            "HTTP/1.1 200 OK",
        ] {
            assert!(meaning(answer).is_err(), "{answer:?}");
        }
        assert_eq!(meaning("stream: OK FOUND"), Ok(Verdict::Infected { signature: "OK".into() }));
    }

    #[test]
    fn an_error_is_named_by_its_remedy() {
        for (answer, is_retryable) in [
            ("stream: Can't allocate memory ERROR", true),
            ("stream: Can't create temporary file ERROR", true),
            ("cli_gentempfd() failed. ERROR", true),
            ("Temporary file -> write ERROR", true),
            ("COMMAND READ TIMED OUT", true),
            ("UNKNOWN COMMAND", true),
            ("stream: Can't unpack some data ERROR", false),
            ("stream: Bad format or broken data ERROR", false),
            ("stream: Exceeded time limit ERROR", false),
            ("stream: Unspecified error ERROR", false),
            ("stream: Exceeded max scan size ERROR", false),
            ("INSTREAM size limit exceeded. ERROR", false),
        ] {
            let error = meaning(answer).expect_err(answer);
            assert_eq!(error.is_retryable(), is_retryable, "{answer}: {error}");
        }
    }

    #[test]
    fn before_the_end_there_is_nothing_clean() {
        assert!(early_meaning("stream: OK").is_err_and(|error| error.is_retryable()));
        assert_eq!(early_meaning("stream: X FOUND"), Ok(Verdict::Infected { signature: "X".into() }));
        assert!(matches!(early_meaning(TOO_LARGE), Err(ScanError::TooLarge(_))));
    }
}
