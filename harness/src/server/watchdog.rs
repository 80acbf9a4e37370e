//! A small shell process that outlives us and ends the server when we are gone without having
//! done so: killed, aborted, or simply exited, for what a `static` holds is never dropped.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Error;

/// Each line on its input is the pid to watch from now on, an empty one means none. The input
/// ends when our process does, however that came about, because nobody else holds the pipe.
/// A zombie counts as ended, for not every container has an init that reaps.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
folder=$1 quick_end=$2 pid=
runs() { kill -0 "$pid" && ! grep -q '^State:.*Z' "/proc/$pid/status"; }
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s CONT "$pid" $(cat "/proc/$pid/task/$pid/children")
    kill -s "$quick_end" "$pid"
    tries=0
    while runs && [ "$tries" -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -s KILL "$pid"
fi
rm -rf -- "$folder"
"#;

pub(crate) struct Watchdog {
    shell: Child,
    pids: Option<ChildStdin>,
}

impl Watchdog {
    pub(crate) fn over(folder: &Path, quick_end: &str) -> Result<Self, Error> {
        // No output of ours may stay open in it: `cargo test` waits until those are closed.
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(folder)
            .arg(quick_end)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::while_doing("starting the watchdog"))?;
        let pids = shell.stdin.take();
        Ok(Self { shell, pids })
    }

    pub(crate) fn watch(&mut self, pid: Option<u32>) -> Result<(), Error> {
        let line = pid.map_or_else(|| "\n".to_owned(), |pid| format!("{pid}\n"));
        self.pids
            .as_mut()
            .expect("the pipe is closed on drop alone")
            .write_all(line.as_bytes())
            .map_err(Error::while_doing("telling the watchdog"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.pids.take());
        let _ = self.shell.wait();
    }
}
