//! Finds the files of a folder that are not on a list: `find_orphans FOLDER LIST`. A store that lists its objects in
//! byte order of their keys can replace the folder.

use std::error::Error;
use std::io::{self, BufRead as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use wharfinger_reconcile::{Comparison, Entries, Entry, Sorter, Times, Totals, Verdict};

const HOUR_MS: i64 = 3_600_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, list] = arguments.as_slice() else { return Err("usage: find_orphans FOLDER LIST".into()) };
    let scratch = std::env::temp_dir().join(format!("find-orphans-{}", std::process::id()));
    let found = find(Path::new(folder), Path::new(list), &scratch);
    std::fs::remove_dir_all(&scratch)?;
    found
}

fn find(folder: &Path, list: &Path, scratch: &Path) -> Result<(), Box<dyn Error>> {
    // The list is as old as its file. A file that was stored after that, or shortly before, may not be on the list yet.
    let as_of = unix_ms(std::fs::metadata(list)?.modified()?)?;
    let mut sorter = Sorter::new(&scratch.join("sorting"))?;
    for line in io::BufReader::new(std::fs::File::open(list)?).lines() {
        sorter.push(Entry::key(line?))?;
    }
    let keys = sorter.finish(&scratch.join("keys"))?;
    if keys.entries == 0 {
        return Err("the list is empty, so every file would be an orphan".into());
    }

    let mut objects: Vec<Entry> = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        let meta = file.metadata()?;
        let modified_at = unix_ms(meta.modified()?)?;
        let name = file.file_name().into_string().map_err(|name| format!("{name:?} is not UTF-8"))?;
        objects.push(Entry::object(name, meta.len(), Some(modified_at)));
    }
    objects.sort_by(|a, b| a.key.cmp(&b.key));

    let mut totals = Totals::new(Times { as_of, grace_ms: HOUR_MS }, 1, 20);
    let mut comparison = Comparison::new(Entries::open(&keys.path)?)?;
    let mut print = |finding| match totals.add(finding) {
        Verdict::Orphan(orphan) => println!("orphan\t{}\t{}", orphan.key, orphan.size.unwrap_or(0)),
        Verdict::Missing(key) => println!("missing\t{}", key.key),
        Verdict::Ok => {}
    };
    for object in objects {
        comparison.object(object, &mut print)?;
    }
    comparison.finish(&mut print)?;
    println!("orphans use {} of {} bytes", totals.orphans.bytes, totals.listed.bytes);
    Ok(())
}

fn unix_ms(at: SystemTime) -> Result<i64, Box<dyn Error>> {
    Ok(i64::try_from(at.duration_since(UNIX_EPOCH)?.as_millis())?)
}
