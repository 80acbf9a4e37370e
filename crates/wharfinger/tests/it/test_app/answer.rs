//! An HTTP answer of the server.

use reqwest::{Response, StatusCode};
use serde_json::Value;

/// An answer with its whole body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    pub async fn read(response: Response) -> Answer {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("a whole answer");
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    /// Expects a complete problem document with this status and code.
    #[track_caller]
    pub fn expect_problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status.as_u16(), self.code()), (status, code), "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        for member in ["type", "title", "status", "detail"] {
            assert!(!self.body[member].is_null(), "{member} in {}", self.body);
        }
        self.body
    }
}
