//! Maps the answers of clamd to verdicts and errors. Only errors about the stream can be caused by the file.

use super::{ScanError, Verdict};

const TOO_LARGE: &str = "INSTREAM size limit exceeded. ERROR";

const QUOTE_CHARS_MAX: usize = 120;

/// Errors of the file that start with "Can't". The other errors with this start are about clamd's machine, such as
/// missing memory, disk space or permissions.
const FILE_ERRORS: [&str; 2] = ["Can't unpack", "Can't parse"];

/// Maps the answer to a stream that was sent completely.
pub(super) fn outcome_of(answer: &str) -> Result<Verdict, ScanError> {
    if answer == TOO_LARGE {
        return Err(ScanError::TooLarge(format!("{} (StreamMaxLength)", answer.trim_end_matches(". ERROR"))));
    }
    let Some(about_stream) = answer.strip_prefix("stream: ") else {
        return Err(if answer.ends_with("ERROR") || answer == "COMMAND READ TIMED OUT" {
            ScanError::Unavailable(format!("clamd answered {:?}", clipped(answer)))
        } else {
            not_clamd(answer)
        });
    };
    if about_stream == "OK" {
        return Ok(Verdict::Clean);
    }
    if let Some(signature) = about_stream.strip_suffix(" FOUND").filter(|name| !name.trim().is_empty()) {
        return Ok(Verdict::Infected { signature: signature.to_owned() });
    }
    let Some(why) = about_stream.strip_suffix(" ERROR") else { return Err(not_clamd(answer)) };
    Err(match why {
        "Exceeded max scan size" => ScanError::TooLarge(format!("{why} (MaxScanSize)")),
        why if why.starts_with("Can't ") && !FILE_ERRORS.iter().any(|start| why.starts_with(start)) => {
            ScanError::Unavailable(why.to_owned())
        }
        why => ScanError::Refused(why.to_owned()),
    })
}

/// Maps an answer that came before the end of the stream. It can be an error or a signature, but never clean.
pub(super) fn outcome_of_early(answer: &str) -> Result<Verdict, ScanError> {
    match outcome_of(answer)? {
        Verdict::Clean => {
            Err(ScanError::Unavailable("clamd answered OK before it had received the whole file".into()))
        }
        found => Ok(found),
    }
}

/// The server is not clamd, or its version does not know the command. Files wait until an operator fixes the address.
pub(super) fn not_clamd(answer: &str) -> ScanError {
    ScanError::Unavailable(format!("the answer is not from clamd, check its address: {:?}", clipped(answer)))
}

pub(super) fn clipped(answer: &str) -> String {
    answer.chars().take(QUOTE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_ok_is_clean() {
        assert_eq!(outcome_of("stream: OK"), Ok(Verdict::Clean));
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
            assert!(outcome_of(answer).is_err(), "{answer:?}");
        }
        assert_eq!(outcome_of("stream: OK FOUND"), Ok(Verdict::Infected { signature: "OK".into() }));
    }

    #[test]
    fn errors_of_clamds_machine_are_retryable_and_errors_of_the_file_are_not() {
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
            let error = outcome_of(answer).expect_err(answer);
            assert_eq!(error.is_retryable(), is_retryable, "{answer}: {error}");
        }
    }

    #[test]
    fn an_early_answer_is_never_clean() {
        assert!(outcome_of_early("stream: OK").is_err_and(|error| error.is_retryable()));
        assert_eq!(outcome_of_early("stream: X FOUND"), Ok(Verdict::Infected { signature: "X".into() }));
        assert!(matches!(outcome_of_early(TOO_LARGE), Err(ScanError::TooLarge(_))));
    }
}
