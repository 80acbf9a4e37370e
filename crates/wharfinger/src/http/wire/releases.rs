//! The JSON type of the call that releases a quarantined file.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::http::problem::Problem;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Why this is a false alarm. It is written to the file's history.
    #[schema(example = "false alarm: the scanner's signature was withdrawn")]
    reason: String,
}

/// Shorter than the column of reasons, which also gets the next stage.
const REASON_BYTES_MAX: usize = 1_000;

impl ReleaseRequest {
    pub fn reason(&self) -> Result<String, Problem> {
        let reason = self.reason.trim();
        match reason.len() {
            0 => Err(Problem::invalid("reason", "must not be empty")),
            length if length > REASON_BYTES_MAX => {
                Err(Problem::invalid("reason", format!("may be at most {REASON_BYTES_MAX} bytes long")))
            }
            _ => Ok(reason.to_owned()),
        }
    }
}
