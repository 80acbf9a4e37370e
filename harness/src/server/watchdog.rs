//! A shell process that stops the server when this process has ended without stopping it: killed, aborted, or exited.
//! At a normal exit, a `static` is never dropped.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Error;

/// Each line of its input is the pid of the server, an empty line means none. The input ends when this process ends in
/// any way, because no other process has the pipe. A zombie counts as ended, because the init of some containers never
/// reaps it.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
folder=$1 stop_signal=$2 pid=
runs() { kill -0 "$pid" && ! grep -q '^State:.*Z' "/proc/$pid/status"; }
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s CONT "$pid" $(cat "/proc/$pid/task/$pid/children")
    kill -s "$stop_signal" "$pid"
    attempts=0
    while runs && [ "$attempts" -lt 100 ]; do
        sleep 0.1
        attempts=$((attempts + 1))
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
    pub(crate) fn start(folder: &Path, stop_signal: &str) -> Result<Self, Error> {
        // It must not inherit our output: `cargo test` waits until that is closed.
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(folder)
            .arg(stop_signal)
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
            .expect("the pipe is closed only on drop")
            .write_all(line.as_bytes())
            .map_err(Error::while_doing("writing to the watchdog"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.pids.take());
        let _ = self.shell.wait();
    }
}
