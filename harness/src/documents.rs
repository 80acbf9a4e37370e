//! A folder with sample documents and hostile files. Common programs (pandoc, typst, ReportLab, openpyxl, python-pptx,
//! qpdf) create them, once on each machine.

mod samples;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::packages::{COMPLETE, at, cache, create_readable, lock};
use crate::{Error, command, installation, python_packages};

pub use samples::{SAMPLES, Sample};

const SCRIPT: &str = include_str!("documents/make.py");

const PACKAGES: [&str; 7] = [
    "msoffcrypto-tool==6.*",
    "odfpy==1.4.*",
    "openpyxl==3.1.*",
    "python-docx==1.*",
    "python-pptx==1.*",
    "reportlab==5.*",
    "typst==0.15.*",
];

/// The folder. It is created if it does not exist. All tests share it, so a test that changes a document must copy it.
///
/// # Panics
///
/// Panics if the documents cannot be created. A test without its documents must fail.
pub fn folder() -> PathBuf {
    static FOLDER: OnceLock<Result<PathBuf, Error>> = OnceLock::new();
    FOLDER.get_or_init(create).as_ref().expect("the documents are created").clone()
}

fn create() -> Result<PathBuf, Error> {
    // Each of these calls takes the lock itself.
    let pandoc = program("pandoc", &["pandoc"])?;
    let qpdf = program("qpdf", &["qpdf"])?;
    let modules = python_packages::install("documents", &PACKAGES)?;

    let cache = cache()?;
    let mut hasher = DefaultHasher::new();
    (SCRIPT, PACKAGES).hash(&mut hasher);
    let folder = cache.join(format!("documents-{:016x}", hasher.finish()));
    let _lock = lock(&cache)?;
    if folder.join(COMPLETE).exists() {
        return Ok(folder);
    }
    eprintln!("creating documents in {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at("removing", &folder))?;
    }
    create_readable(&folder)?;
    let mut python = Command::new(python_packages::python());
    python.arg("-c").arg(SCRIPT).arg(&folder).env("PYTHONPATH", modules);
    for (name, tool) in [("PANDOC", pandoc), ("QPDF", qpdf)] {
        python.env(name, tool.program);
        python.env(format!("{name}_LIBRARIES"), tool.library_path.unwrap_or_default());
    }
    command::run(&mut python)?;
    fs::write(folder.join(COMPLETE), "").map_err(at("marking as complete", &folder))?;
    Ok(folder)
}

struct Tool {
    program: PathBuf,
    library_path: Option<std::ffi::OsString>,
}

fn program(name: &str, packages: &[&str]) -> Result<Tool, Error> {
    installation::find_or_unpack(name, packages, |root: &Path| {
        let program = root.join("usr/bin").join(name);
        program.exists().then(|| Tool { program, library_path: installation::library_path(root) })
    })
}
