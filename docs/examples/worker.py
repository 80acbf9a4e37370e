#!/usr/bin/env python3
"""A worker for Wharfinger with nothing but Python's standard library.

    WHARFINGER_URL=http://127.0.0.1:8080 WHARFINGER_TOKEN=$(wharfinger token --tenant ops --user w --role worker \
        --expires 24h) python3 worker.py scan extract chunk embed

It leases files of the named stages, processes them, keeps its leases by heartbeats, and reports the results. Each stage
here is as simple as possible: replace the body of one and keep the rest. `--until-idle` ends the worker when no file is
left.
"""

import hashlib
import json
import math
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request

SERVER = os.environ.get("WHARFINGER_URL", "http://127.0.0.1:8080").rstrip("/")
TOKEN = os.environ["WHARFINGER_TOKEN"]
LEASE_MS = int(os.environ.get("LEASE_MS", "60000"))


class Unusable(Exception):
    """The file can never be processed: not supported, corrupted, encrypted."""


class NoText(Exception):
    """The type of the file has no text. EXTRACT_UNSUPPORTED of the server decides what that means."""


class LeaseLost(Exception):
    """Another worker has the file now. Our result is rejected."""


def call(path, body):
    request = urllib.request.Request(
        SERVER + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        problem = json.load(error)
        if problem.get("code") == "lease_lost":
            raise LeaseLost from None
        raise RuntimeError(f"{path}: {error.code} {problem.get('code')}: {problem.get('detail')}") from None


def download(job):
    """The confirmed bytes, piece by piece."""
    with urllib.request.urlopen(job["downloadUrl"], timeout=60) as answer:
        while piece := answer.read(1 << 16):
            yield piece


def input_of(job):
    """The output of the stage before. A large one is behind a URL that needs no token."""
    if "url" not in job["input"]:
        return job["input"]
    with urllib.request.urlopen(job["input"]["url"], timeout=60) as answer:
        return json.load(answer)


def scan(job):
    digest = hashlib.sha256()
    for piece in download(job):
        digest.update(piece)
    known = {"275a021bbfb6489e54d471899f7db9d1663fc695ec2fe2a2c4538aabf651fd0f": "Eicar-Test"}
    signature = known.get(digest.hexdigest())
    return {"verdict": "infected", "signature": signature} if signature else {"verdict": "clean"}


def extract(job):
    try:
        return {"text": b"".join(download(job)).decode("utf-8")}
    except UnicodeDecodeError:
        raise NoText("not a text in UTF-8") from None


def chunk(job):
    text = input_of(job)["text"]
    sentences = re.finditer(r"[^.!?\n]+[.!?]?", text)
    return {
        "chunks": [
            {"text": sentence.group(), "start": sentence.start(), "end": sentence.end()}
            for sentence in sentences
            if sentence.group().strip()
        ]
    }


def embed(job):
    vectors = []
    for one in input_of(job)["chunks"]:
        vector = [0.0] * 64
        for word in re.findall(r"\w+", one["text"].lower()):
            vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % 64] += 1.0
        length = math.sqrt(sum(number * number for number in vector)) or 1.0
        vectors.append([number / length or 1e-9 for number in vector])
    return {"vectors": vectors}


STAGES = {"scan": scan, "extract": extract, "chunk": chunk, "embed": embed}


def keep_lease(job, done):
    """Sends three heartbeats per lease, until the work is done or the lease is lost."""
    while not done.wait(LEASE_MS / 3000):
        try:
            call(f"/api/v2/workers/jobs/{job['jobId']}/heartbeat", {"leaseToken": job["leaseToken"]})
        except LeaseLost:
            return
        except (OSError, RuntimeError) as error:
            print(f"heartbeat: {error}", file=sys.stderr)


def work(job):
    path, token = f"/api/v2/workers/jobs/{job['jobId']}", {"leaseToken": job["leaseToken"]}
    done = threading.Event()
    heart = threading.Thread(target=keep_lease, args=(job, done), daemon=True)
    heart.start()
    try:
        output = STAGES[job["stage"]](job)
        ended = call(path + "/complete", {**token, "output": output})
        print(f"{job['stage']} of {job['fileName']}: now {ended['status']}", flush=True)
    except LeaseLost:
        print(f"{job['stage']} of {job['fileName']}: lease lost, another worker has it", flush=True)
    except NoText as error:
        ended = call(path + "/fail", {**token, "error": str(error), "unsupported": True})
        print(f"{job['stage']} of {job['fileName']}: no text, now {ended['status']}", flush=True)
    except Unusable as error:
        call(path + "/fail", {**token, "error": str(error), "retryable": False})
    except Exception as error:  # any other error: the file is retried
        call(path + "/fail", {**token, "error": f"{type(error).__name__}: {error}", "retryable": True})
    finally:
        done.set()
        heart.join()


def main():
    until_idle = "--until-idle" in sys.argv
    stages = [stage for stage in sys.argv[1:] if not stage.startswith("--")] or list(STAGES)
    while True:
        try:
            jobs = call("/api/v2/workers/lease", {"stages": stages, "max": 4, "leaseMs": LEASE_MS})["jobs"]
        except OSError as error:
            print(f"{SERVER} does not answer: {error}", file=sys.stderr)
            time.sleep(2)
            continue
        for job in jobs:
            try:
                work(job)
            except (LeaseLost, OSError, RuntimeError) as error:
                # The lease expires by itself, and another worker gets the file.
                print(f"{job['stage']} of {job['fileName']}: {error}", file=sys.stderr)
        if not jobs:
            if until_idle:
                return
            time.sleep(1)


if __name__ == "__main__":
    main()
