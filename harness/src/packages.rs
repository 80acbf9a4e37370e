//! Debian packages, unpacked into a cache folder. This needs no root and does not change the system. apt finds the
//! packages that this machine lacks, and `dpkg-deb` unpacks them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::effective_uid;
use crate::{Error, command};

/// If this is set, installed programs are ignored.
pub(crate) const UNPACK_VARIABLE: &str = "WHARFINGER_TEST_UNPACK";

/// Written last, so that an interrupted installation is repeated.
pub(crate) const COMPLETE: &str = ".complete";

/// Which package lists apt uses.
#[derive(Clone, Copy)]
enum Lists {
    System,
    Private,
}

/// Checks that the program runs, and installs it if this process is root. For programs that cannot be unpacked into a
/// folder, because their paths are fixed. For other users the error names the packages.
pub(crate) fn require(program: &str, packages: &[&str]) -> Result<(), Error> {
    let runs = || command::run(Command::new(program).arg("--version"));
    if runs().is_ok() {
        return Ok(());
    }
    let names = packages.join(" ");
    if effective_uid()? != 0 {
        return Err(Error::new(format!("{program} is needed. Install it: apt-get install {names}")));
    }
    let _lock = lock(&cache()?)?;
    if runs().is_ok() {
        return Ok(());
    }
    eprintln!("installing {names} into the system");
    command::run(Command::new("apt-get").args(["update", "-q"]))?;
    command::run(
        Command::new("apt-get")
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )?;
    runs().map(|_| ())
}

/// Unpacks the packages and their missing dependencies. Returns the folder that replaces `/`. Does nothing if they are
/// already unpacked.
pub fn unpack(packages: &[&str]) -> Result<PathBuf, Error> {
    let cache = cache()?;
    let mut hasher = DefaultHasher::new();
    packages.hash(&mut hasher);
    let first = packages.first().copied().unwrap_or_default();
    let folder = cache.join(format!("{first}-{:016x}", hasher.finish()));
    let root = folder.join("root");

    // Test binaries run in parallel, and several may find that the package is missing.
    let _lock = lock(&cache)?;
    if folder.join(COMPLETE).exists() {
        return Ok(root);
    }
    eprintln!("unpacking {} into {}", packages.join(", "), folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at("removing", &folder))?;
    }
    create_readable(&folder)?;
    create_readable(&root)?;
    let archives = folder.join("archives");
    create_readable(&archives)?;
    create_readable(&archives.join("partial"))?;

    download(&cache, &archives, packages).map_err(|error| {
        Error::new(format!("{error}\nInstall the packages by hand: apt-get install {}", packages.join(" ")))
    })?;
    for archive in archives_in(&archives)? {
        command::run(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&root))?;
    }
    fs::remove_dir_all(&archives).map_err(at("removing", &archives))?;
    File::create(folder.join(COMPLETE)).map_err(at("marking as complete", &folder))?;
    Ok(root)
}

/// The roots of all packages that were unpacked before.
pub fn unpacked() -> Result<Vec<PathBuf>, Error> {
    let cache = cache()?;
    Ok(entries(&cache)?
        .into_iter()
        .filter(|folder| folder.join(COMPLETE).exists())
        .map(|folder| folder.join("root"))
        .collect())
}

/// The package names that apt knows with this prefix.
pub fn known(prefix: &str) -> Result<Vec<String>, Error> {
    let cache = cache()?;
    let _lock = lock(&cache)?;
    let ask = |lists| command::run(apt("apt-cache", &cache, lists)?.arg("pkgnames").arg(prefix));
    let mut names = ask(Lists::System)?;
    if names.is_empty() {
        update(&cache)?;
        names = ask(Lists::Private)?;
    }
    Ok(names.lines().map(str::to_owned).collect())
}

/// The `LD_LIBRARY_PATH` for programs in an unpacked root: its library folders, then those of the environment.
pub fn library_path(root: &Path) -> Option<OsString> {
    let mut folders = Vec::new();
    for libraries in [root.join("usr/lib"), root.join("lib")] {
        folders.extend(
            entries(&libraries)
                .unwrap_or_default()
                .into_iter()
                .filter(|folder| folder.to_string_lossy().contains("-linux-gnu")),
        );
    }
    if folders.is_empty() {
        return None;
    }
    if let Some(present) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&present));
    }
    std::env::join_paths(folders).ok()
}

/// Tries the system's package lists, then fresh private ones. Container images have no lists, and old lists name
/// versions that the archive no longer has.
fn download(cache: &Path, archives: &Path, packages: &[&str]) -> Result<(), Error> {
    let Err(first) = download_by(Lists::System, cache, archives, packages) else {
        return Ok(());
    };
    // The update fails if any source is out of reach. The needed packages may be in another source.
    let updated = update(cache);
    download_by(Lists::Private, cache, archives, packages).map_err(|second| {
        let update = updated.map_or_else(|error| format!("\n{error}"), |()| String::new());
        Error::new(format!("{first}\nand with fresh lists:{update}\n{second}"))
    })
}

fn download_by(lists: Lists, cache: &Path, archives: &Path, packages: &[&str]) -> Result<(), Error> {
    command::run(
        apt("apt-get", cache, lists)?
            .arg("-o")
            .arg(option("Dir::Cache::archives", archives))
            .args(["install", "--download-only", "--yes"])
            // Without this, apt downloads nothing for installed packages.
            .args(["--no-install-recommends", "--reinstall"])
            .args(packages),
    )?;
    // apt reports no error if an installed package is in none of its lists.
    let present = archives_in(archives)?;
    let is_present = |package: &str| {
        let start = format!("{package}_");
        present.iter().any(|archive| {
            let name = archive.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(&start)
        })
    };
    match packages.iter().find(|package| !is_present(package)) {
        Some(missing) => Err(Error::new(format!("apt-get did not download {missing}"))),
        None => Ok(()),
    }
}

fn update(cache: &Path) -> Result<(), Error> {
    command::run(apt("apt-get", cache, Lists::Private)?.arg("update")).map(drop)
}

/// An apt program that uses the system's sources and writes only into our cache.
fn apt(program: &str, cache: &Path, lists: Lists) -> Result<Command, Error> {
    let apt = cache.join("apt");
    create_readable(&apt)?;
    // In a file, because the command line cannot clear a list. The hooks are for updates of the system: they delete its
    // cache or refresh its indexes.
    let settings = apt.join("settings");
    let text = "#clear APT::Update::Pre-Invoke;\n\
                #clear APT::Update::Post-Invoke;\n\
                #clear APT::Update::Post-Invoke-Success;\n\
                Acquire::Languages \"none\";\n\
                Debug::NoLocking \"true\";\n";
    fs::write(&settings, text).map_err(at("writing", &settings))?;

    let mut command = Command::new(program);
    command
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("-q")
        .arg("-c")
        .arg(settings)
        .arg("-o")
        .arg(option("Dir::Cache", &apt.join("cache")));
    create_readable(&apt.join("cache"))?;
    if let Lists::Private = lists {
        let lists = apt.join("lists");
        create_readable(&lists)?;
        create_readable(&lists.join("partial"))?;
        command.arg("-o").arg(option("Dir::State::lists", &lists));
    }
    Ok(command)
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

fn archives_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut archives = entries(folder)?;
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    Ok(archives)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut paths = fs::read_dir(folder)
        .and_then(|entries| entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>, _>>())
        .map_err(at("listing", folder))?;
    paths.sort();
    Ok(paths)
}

/// The folder for everything that is unpacked. It survives reboots and belongs to one user.
pub fn cache() -> Result<PathBuf, Error> {
    let uid = effective_uid()?;
    let cache = PathBuf::from(format!("/var/tmp/wharfinger-services-{uid}"));
    create_readable(&cache)?;
    // Any user can create this folder in /var/tmp, and we run programs from it. So it must belong to us.
    let found = fs::symlink_metadata(&cache).map_err(at("reading the owner of", &cache))?;
    if !found.is_dir() || found.uid() != uid {
        return Err(Error::new(format!("{} does not belong to uid {uid}. Remove it", cache.display())));
    }
    Ok(cache)
}

/// Creates a folder that every account can read, whatever the umask. Servers may run under another account.
pub(crate) fn create_readable(folder: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o755).create(folder) {
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(0o755))
            .map_err(at("setting the mode of", folder)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(at("creating", folder)(error)),
    }
}

/// The lock is held until the file is dropped or the process ends.
pub(crate) fn lock(cache: &Path) -> Result<File, Error> {
    let path = cache.join("lock");
    let file = File::create(&path).map_err(at("opening", &path))?;
    file.lock().map_err(at("locking", &path))?;
    Ok(file)
}

pub(crate) fn at(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    Error::while_doing(format!("{doing} {}", path.display()))
}
