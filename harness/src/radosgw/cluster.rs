//! The smallest Ceph cluster that a gateway accepts: one monitor and one OSD. Its data is deleted at the end.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::Options;
use super::binaries::Binaries;
use crate::Error;
use crate::server::{Server, free_port, listens, random};

const START_TIMEOUT: Duration = Duration::from_secs(30);

/// No test stops the monitor or the OSD. They are dropped in this order, because an OSD without its monitor logs
/// errors.
pub(crate) struct Cluster {
    osd: Server,
    monitor: Server,
}

impl Cluster {
    pub(crate) fn start(binaries: &Binaries, options: Options) -> Result<Self, Error> {
        // SIGKILL for both: a normal shutdown would save data that is deleted right after.
        let mut cluster = Self {
            osd: Server::prepare("ceph-osd", None, "KILL")?,
            monitor: Server::prepare("ceph-mon", None, "KILL")?,
        };
        let id = uuid();
        let port = free_port()?;
        let path = cluster.configuration();
        fs::write(&path, cluster.settings(binaries, options, &id, port))
            .map_err(Error::while_doing(format!("writing {}", path.display())))?;
        cluster.start_monitor(binaries, &id, port)?;
        cluster.start_osd(binaries)?;
        Ok(cluster)
    }

    /// One of Ceph's programs, configured for this cluster.
    pub(crate) fn command(&self, binaries: &Binaries, program: &str) -> Command {
        let mut command = binaries.command(program);
        command.arg("--conf").arg(self.configuration());
        command
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.monitor.folder().join("ceph.conf")
    }

    fn start_monitor(&mut self, binaries: &Binaries, id: &str, port: u16) -> Result<(), Error> {
        let map = self.monitor.folder().join("monmap");
        let mut make_map = binaries.command("monmaptool");
        make_map.args(["--create", "--fsid", id, "--addv", "a", &format!("[v2:127.0.0.1:{port}]")]).arg(&map);
        self.monitor.run(make_map)?;
        let mut make = self.command(binaries, "ceph-mon");
        make.args(["--id", "a", "--mkfs", "--monmap"]).arg(&map);
        self.monitor.run(make)?;
        let mut run = self.command(binaries, "ceph-mon");
        run.args(["--id", "a", "-f"]);
        self.monitor.spawn(run)?;
        self.monitor.wait_until("Ceph's monitor", START_TIMEOUT, |pid| listens(pid, port))
    }

    /// Does not wait for the OSD, because its clients wait until it answers.
    fn start_osd(&mut self, binaries: &Binaries) -> Result<(), Error> {
        let data = data(&self.osd);
        fs::create_dir(&data).map_err(Error::while_doing(format!("creating {}", data.display())))?;
        let mut make = self.command(binaries, "ceph-osd");
        make.args(["--id", "0", "--mkfs", "--osd-uuid", &uuid()]);
        self.osd.run(make)?;
        let mut run = self.command(binaries, "ceph-osd");
        run.args(["--id", "0", "-f"]);
        self.osd.spawn(run)
    }

    fn settings(&self, binaries: &Binaries, options: Options, id: &str, port: u16) -> String {
        let store = if options.on_disk { ON_DISK } else { IN_MEMORY };
        let libraries = binaries.libraries().display();
        let (monitor, osd) = (data(&self.monitor), data(&self.osd));
        let (monitor, osd) = (monitor.display(), osd.display());
        format!(
            "[global]
fsid = {id}
mon_host = v2:127.0.0.1:{port}
mon_data = {monitor}
osd_data = {osd}
{SETTINGS}{store}
plugin_dir = {libraries}/ceph
compressor_dir = {libraries}/ceph/compressor
erasure_code_dir = {libraries}/ceph/erasure-code
osd_class_dir = {libraries}/rados-classes
"
        )
    }
}

const SETTINGS: &str = "
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false

# No keys. So no encryption either: the gateway would require it for the monitor.
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc

# Log only a little, to standard error.
log_file =
log_to_file = false
log_to_stderr = true
mon_cluster_log_to_file = false
admin_socket =
debug_rocksdb = 0/0
debug_memstore = 0/0
debug_mon = 0/0
debug_osd = 0/0
debug_rgw = 0/0

# One copy on one OSD.
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000

# Creating a pool is a decision of the monitors. By default a monitor waits a second for others.
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
# A client that starts before the OSD asks again. The default interval is five seconds.
objecter_tick_interval = 0.5
# A monitor stops if its disk is nearly full, and some tests fill disks.
mon_data_avail_crit = 0

# By default deleted objects use space for two more hours.
rgw_gc_obj_min_wait = 30
rgw_gc_processor_period = 30
rgw_gc_processor_max_time = 30
# Other gateways wait this long for an answer of a killed gateway.
osd_client_watch_timeout = 2
# Allows buckets in host names: bucket.localhost.
rgw_dns_name = localhost
";

/// Each object needs twice its size. The limit does not reserve memory.
const IN_MEMORY: &str = "
osd_objectstore = memstore
memstore_device_bytes = 17179869184
";

/// In a sparse file: only written blocks use the disk.
const ON_DISK: &str = "
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = 68719476736
osd_memory_target = 939524096
debug_bdev = 0/0
debug_bluefs = 0/0
debug_bluestore = 0/0
";

fn data(server: &Server) -> PathBuf {
    server.folder().join("data")
}

fn uuid() -> String {
    let (high, low) = (random(), random());
    let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
    format!("{a:08x}-{b:04x}-4{c:03x}-8{:03x}-{:012x}", low >> 52, low & 0xffff_ffff_ffff)
}
