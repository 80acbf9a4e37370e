//! The media type under which a file is sent, so that no browser runs it: inline and as an attachment.

use crate::media_type::essence;

/// The types that a browser shows and does not run in the page of the URL. SVG is not one of them: it can contain scripts.
/// Viewers run the scripts of a PDF apart from that page.
const INLINE: &[&str] = &[
    "image/png",
    "image/apng",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "image/avif",
    "image/bmp",
    "image/x-icon",
    "image/vnd.microsoft.icon",
    "image/heic",
    "image/heif",
    "image/jxl",
    "image/tiff",
    "video/mp4",
    "video/webm",
    "video/ogg",
    "video/quicktime",
    "video/x-m4v",
    "video/x-matroska",
    "video/mpeg",
    "audio/mpeg",
    "audio/mp4",
    "audio/x-m4a",
    "audio/aac",
    "audio/ogg",
    "audio/opus",
    "audio/wav",
    "audio/x-wav",
    "audio/flac",
    "audio/x-flac",
    "audio/webm",
    "application/pdf",
    "text/plain",
];

/// The type under which a browser may show a file of this declared type. `None`: it could run, or is unknown.
pub fn inline_type(declared: &str) -> Option<String> {
    let essence = match essence(declared).as_str() {
        "image/jpg" | "image/pjpeg" => "image/jpeg",
        "audio/mp3" => "audio/mpeg",
        other => *INLINE.iter().find(|known| **known == other)?,
    };
    Some(match essence {
        "text/plain" => format!("text/plain; charset={}", charset(declared).unwrap_or("utf-8")),
        other => other.to_owned(),
    })
}

/// The type under which a file of this declared type is sent as an attachment. Pages load scripts and styles although they
/// are attachments, and Firefox ran pages inside multipart attachments (CVE-2024-10461). So these are sent as bytes of no type.
///
/// A file of no declared type has no type either, whatever its uploader told the store.
pub fn attachment_type(declared: Option<&str>) -> String {
    const NO_TYPE: &str = "application/octet-stream";
    let Some(declared) = declared else { return NO_TYPE.to_owned() };
    let essence = essence(declared);
    let subtype = essence.split_once('/').map_or("", |(_, subtype)| subtype);
    let is_script =
        ["javascript", "ecmascript", "jscript", "livescript"].iter().any(|word| subtype.contains(word));
    if is_script || essence == "text/css" || essence.starts_with("multipart/") {
        return NO_TYPE.to_owned();
    }
    // Browsers may read another type after a comma.
    if declared.contains(',') { essence } else { declared.to_owned() }
}

fn charset(media_type: &str) -> Option<&str> {
    let parameter = |part: &'_ str| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then_some(())?;
        Some(value.len())
    };
    let part = media_type.split(';').skip(1).find(|part| parameter(part).is_some())?;
    let value = part.split_once('=')?.1.trim().trim_matches('"');
    let is_name = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    is_name.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_types_that_cannot_run_are_inline() {
        for (declared, shown) in [
            ("image/png", "image/png"),
            ("IMAGE/JPG", "image/jpeg"),
            ("image/png; x=<script>", "image/png"),
            ("application/pdf", "application/pdf"),
            ("text/plain", "text/plain; charset=utf-8"),
            ("text/plain; charset=\"latin1\"", "text/plain; charset=latin1"),
            ("text/plain; charset=a b", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(inline_type(declared).as_deref(), Some(shown), "{declared}");
        }
        for running in [
            "image/svg+xml",
            "text/html",
            "application/xhtml+xml",
            "text/xml",
            "text/css",
            "text/javascript",
            "application/octet-stream",
            "multipart/related",
            "image/*",
            "",
        ] {
            assert_eq!(inline_type(running), None, "{running}");
        }
    }

    #[test]
    fn attachments_are_no_scripts_no_styles_and_no_multipart() {
        for kept in ["image/png", "text/html; charset=latin1", "image/svg+xml", "application/json"] {
            assert_eq!(attachment_type(Some(kept)), kept);
        }
        assert_eq!(attachment_type(Some("A/B;x, text/javascript")), "a/b");
        assert_eq!(attachment_type(None), "application/octet-stream");
        for replaced in [
            "text/javascript",
            "Application/X-JavaScript; charset=utf-8",
            "text/ecmascript",
            "text/jscript",
            "text/livescript",
            "text/css",
            "multipart/x-mixed-replace;boundary=x",
            "multipart/related, image/png",
        ] {
            assert_eq!(attachment_type(Some(replaced)), "application/octet-stream", "{replaced}");
        }
    }
}
