//! Lines on standard output. Whoever reads them may stop at any line (`| head`): that ends us quietly.

use std::io::{ErrorKind, Write as _};

pub(super) fn line(text: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", text.as_ref())
        && error.kind() == ErrorKind::BrokenPipe
    {
        std::process::exit(0);
    }
}
