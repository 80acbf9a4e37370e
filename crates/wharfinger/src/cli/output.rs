//! Lines on standard output. If the reader closes the pipe (`| head`), the program exits quietly.

use std::io::{ErrorKind, Write as _};

pub(super) fn line(text: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", text.as_ref())
        && error.kind() == ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
