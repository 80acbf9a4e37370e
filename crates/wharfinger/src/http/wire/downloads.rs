//! The options of a download and its answer.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wharfinger_stores::{Disposition, URL_LIFE_MAX};

use super::super::problem::Problem;
use crate::uploads::download::{DownloadRequest, URL_LIFE_MS};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DownloadQuery {
    /// `false`: the URL is in the answer, not in a redirect. Default: `true`.
    #[param(example = false)]
    redirect: Option<bool>,
    /// `inline`: a browser shows the file instead of saving it. Only for pictures (not SVG), film, sound, PDF and plain
    /// text. Default: `attachment`.
    #[param(example = "inline")]
    disposition: Option<String>,
    /// How long the URL works, in seconds: 1 to 604800 (7 days). Default: 300.
    #[param(example = 3600, minimum = 1, maximum = 604_800)]
    expires_in: Option<i64>,
}

impl DownloadQuery {
    pub fn is_redirect(&self) -> bool {
        self.redirect.unwrap_or(true)
    }

    pub fn request(&self) -> Result<DownloadRequest, Problem> {
        let disposition = match self.disposition.as_deref() {
            None | Some("attachment") => Disposition::Attachment,
            Some("inline") => Disposition::Inline,
            Some(_) => return Err(Problem::invalid("disposition", "must be `attachment` or `inline`")),
        };
        let seconds_max = i64::try_from(URL_LIFE_MAX.as_secs()).unwrap_or(i64::MAX);
        let life_ms = match self.expires_in {
            None => URL_LIFE_MS,
            Some(seconds) if (1..=seconds_max).contains(&seconds) => seconds * 1_000,
            Some(_) => {
                let problem = format!("must be 1 to {seconds_max} seconds (7 days)");
                return Err(Problem::invalid("expiresIn", problem));
            }
        };
        Ok(DownloadRequest { disposition, life_ms })
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadView {
    /// Needs no token.
    #[schema(
        example = "https://files.example.com/blobs/uploads/acme/ada/01a1ddbc-73f6-7ed5-96bc-09d1851af368?expires=1767268800000&sig=abc"
    )]
    pub url: String,
    #[schema(example = "2026-01-01T12:00:00.000Z")]
    pub expires_at: String,
}
