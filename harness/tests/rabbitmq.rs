//! The promises the tests of RabbitMQ rely on: virtual hosts apart from each other, faults that
//! are real, messages that survive them, and nothing left behind.

mod amqp;
mod watching;

use std::io::Read;

use amqp::Client;
use harness::rabbitmq::{ADDRESS_VARIABLE, RabbitMq, shared};
use watching::{folders_of, in_the_end, is_open, is_silent, port_of, processes_of, say, services, told_of};

const KINDS: [&str; 2] = ["classic", "quorum"];

fn connect(url: &str) -> Client {
    Client::connect(url).expect("connected")
}

fn queues_at(rabbitmq: &RabbitMq, url: &str) -> String {
    let (_, vhost) = url.rsplit_once('/').expect("a virtual host");
    rabbitmq.ctl(&["list_queues", "-p", vhost, "name", "messages"]).expect("listed")
}

#[test]
fn virtual_hosts_are_apart() {
    let rabbitmq = shared();
    let (one, other) = (rabbitmq.create_vhost(), rabbitmq.create_vhost());
    let mut client = connect(&one);
    client.declare("queue", "classic");
    client.publish("queue", "message");
    assert_eq!(queues_at(rabbitmq, &other), "");
    assert_eq!(connect(&other).get("queue"), None);
    assert_eq!(client.get("queue").as_deref(), Some("message"));
    assert_eq!(client.get("queue"), None);
    assert!(Client::connect(&rabbitmq.url_of("nobody's")).is_none(), "any virtual host will do");
    let error = rabbitmq.ctl(&["delete_vhost", "nobody's"]).expect_err("no such virtual host");
    assert!(error.to_string().contains("nobody's"), "{error}");
}

#[test]
fn what_was_confirmed_survives_a_kill_and_nothing_survives_wipe_or_drop() {
    let mut rabbitmq = RabbitMq::start().expect("started");
    let port = rabbitmq.port();
    let folder = rabbitmq.folder().expect("ours");
    let mut client = connect(&rabbitmq.url());
    for kind in KINDS {
        client.declare(kind, kind);
    }
    rabbitmq.flush_queue_metadata().expect("flushed");
    for kind in KINDS {
        client.publish(kind, "kept");
    }

    rabbitmq.kill().expect("killed");
    assert!(!is_open(port), "a killed server accepts connections");
    assert_eq!(rabbitmq.pid(), None);
    assert!(rabbitmq.ctl(&["list_queues"]).is_err(), "a killed server answered");
    assert!(rabbitmq.kill().is_err(), "killed what does not run");
    rabbitmq.start_again().expect("started after a kill");
    assert!(rabbitmq.start_again().is_err(), "started what runs");
    assert_eq!(rabbitmq.port(), port);
    let mut client = connect(&rabbitmq.url());
    for kind in KINDS {
        assert_eq!(client.get(kind).as_deref(), Some("kept"), "{kind}");
        client.publish(kind, "wiped");
    }

    rabbitmq.pause().expect("paused");
    let mut question = say(port, b"AMQP\0\0\x09\x01");
    assert!(is_silent(&mut question), "a paused server answered");
    rabbitmq.resume().expect("resumed");
    assert_eq!(connect(&rabbitmq.url()).get("none"), None);
    question.read_exact(&mut [0]).expect("answered at last");

    rabbitmq.stop().expect("stopped");
    assert!(!is_open(port), "a stopped server accepts connections");
    rabbitmq.wipe().expect("wiped");
    assert_eq!(rabbitmq.port(), port);
    assert_eq!(rabbitmq.ctl(&["list_queues"]).expect("listed"), "");

    drop(rabbitmq);
    assert!(!is_open(port), "a dropped server accepts connections");
    assert!(!folder.exists(), "a dropped server left its folder");
}

#[test]
fn nothing_is_left_of_a_process_that_was_killed() {
    let (mut process, url) = services("rabbitmq", ADDRESS_VARIABLE);
    let pid = process.id();
    let (_, epmd) = url.split_once("&epmd=").expect("the registry's port");
    let epmd = epmd.split('&').next().and_then(|port| port.parse().ok()).expect("a number");
    assert!(is_open(port_of(&url)) && is_open(epmd), "the services do not run");
    // The node and the registry, of which only the node tells its folder, each with its watchdog.
    // From time to time the node has `df` look at its folder.
    assert!(in_the_end(|| (folders_of(pid), processes_of(pid)) == (2, 3)));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let gone = || !is_open(port_of(&url)) && !is_open(epmd) && folders_of(pid) == 0 && processes_of(pid) == 0;
    assert!(in_the_end(gone), "the server lives on");
}

#[test]
fn a_server_named_by_the_environment_is_used() {
    let test = "virtual_hosts_are_apart";
    assert!(told_of(ADDRESS_VARIABLE, &shared().sharing_url(), test));
    let nowhere = shared().sharing_url().replace(&format!(":{}/", shared().port()), ":1/");
    assert!(!told_of(ADDRESS_VARIABLE, &nowhere, test), "another server was started");
}
