//! A server process of the release binary, on a new data folder.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) struct Server {
    child: Child,
    /// Removed with the server.
    _folder: TempDir,
    data: PathBuf,
    pub(crate) url: String,
    pub(crate) token: String,
    pub(crate) ready_after: Duration,
}

const SECRET: &str = "thirty-two bytes that protect nothing";

impl Server {
    pub(crate) async fn start(database_url: Option<&str>) -> Server {
        Server::start_with(database_url, &[]).await
    }

    pub(crate) async fn start_with(database_url: Option<&str>, more: &[(&'static str, String)]) -> Server {
        let binary = binary();
        let folder = tempfile::tempdir_in(base()).expect("a temporary folder");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).expect("a port");
        let mut common = vec![
            ("WHARFINGER_LISTEN", address.to_string()),
            ("WHARFINGER_JWT_SECRET", SECRET.to_owned()),
            ("WHARFINGER_DATA_DIR", folder.path().join("data").display().to_string()),
            ("DEFAULT_TENANT_QUOTA_BYTES", "1TiB".to_owned()),
            // No stages by default, because most measurements are about uploads.
            ("PIPELINE_STAGES", String::new()),
        ];
        common.extend(database_url.map(|url| ("WHARFINGER_DATABASE_URL", url.to_owned())));
        common.extend(more.iter().cloned());
        let data = common.iter().rev().find(|(name, _)| *name == "WHARFINGER_DATA_DIR");
        let data = PathBuf::from(data.map(|(_, folder)| folder).expect("it is set"));
        let minted = Command::new(&binary)
            .args(["token", "--tenant", "t", "--user", "u", "--role", "operator"])
            .envs(common.iter().cloned())
            .output()
            .expect("the binary runs");
        let token = String::from_utf8(minted.stdout).expect("a token").trim().to_owned();
        let started = Instant::now();
        let child = Command::new(&binary)
            .arg("serve")
            .envs(common)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let url = format!("http://{address}");
        let http = client();
        while http.get(format!("{url}/readyz")).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(started.elapsed() < Duration::from_secs(30), "the server is not ready");
        }
        Server { child, _folder: folder, data, url, token, ready_after: started.elapsed() }
    }

    /// Tokens for this number of tenants, each with this number of users.
    pub(crate) fn tokens(&self, tenants: usize, users: usize) -> Vec<String> {
        let mint = |tenant: usize, user: usize| {
            let minted = Command::new(binary())
                .args(["token", "--tenant", &format!("t{tenant}"), "--user", &format!("u{user}")])
                .env("WHARFINGER_JWT_SECRET", SECRET)
                .env("WHARFINGER_DATA_DIR", &self.data)
                .output()
                .expect("the binary runs");
            String::from_utf8(minted.stdout).expect("a token").trim().to_owned()
        };
        (0..tenants)
            .flat_map(|tenant| (0..users).map(move |user| (tenant, user)))
            .map(|(t, u)| mint(t, u))
            .collect()
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let answer = client().get(format!("{}/metrics", self.url)).send().await.expect("metrics");
        let text = answer.text().await.expect("text");
        let of_name = text.lines().filter(|line| line.split([' ', '{']).next() == Some(name));
        of_name.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until the metric meets the condition. Returns the duration.
    pub(crate) async fn until_metric(&self, name: &str, condition: impl Fn(f64) -> bool) -> Duration {
        let started = Instant::now();
        while !condition(self.metric(name).await) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        started.elapsed()
    }

    pub(crate) fn blob_dir(&self) -> PathBuf {
        self.data.join("blobs")
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        memory_kib(self.child.id(), "VmRSS:")
    }

    /// The maximum resident size so far.
    pub(crate) fn peak_kib(&self) -> u64 {
        memory_kib(self.child.id(), "VmHWM:")
    }

    /// The maximum resident size of its current child processes.
    pub(crate) fn children_peak_kib(&self) -> u64 {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let all: Vec<String> = lists.chain(std::fs::read_to_string(path).ok()).collect();
        let pids = all.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok());
        pids.map(|pid| memory_kib(pid, "VmHWM:")).max().unwrap_or(0)
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        ticks as f64 / 100.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn memory_kib(pid: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

/// A folder on the measured disk, not in a memory file system.
pub(crate) fn base() -> PathBuf {
    let base = binary().parent().map(PathBuf::from).unwrap_or_default().join("bench-data");
    std::fs::create_dir_all(&base).expect("a folder for data");
    base
}

pub(crate) fn binary() -> PathBuf {
    let beside = std::env::current_exe().expect("the path of this binary").with_file_name("wharfinger");
    assert!(beside.exists(), "build the release binary first: cargo build --release");
    beside
}
