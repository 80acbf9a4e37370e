#!/usr/bin/env python3
"""A small web app with picture uploads through Wharfinger. It needs only Python's standard library.

People sign in, upload pictures, see them, and delete them. The app signs the upload tokens, receives webhooks, and keeps
its own table of pictures in SQLite. The tutorial is in web-app.md.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WHARFINGER = os.environ.get("WHARFINGER_URL", "http://127.0.0.1:8080").rstrip("/")
JWT_SECRET = os.environ["WHARFINGER_JWT_SECRET"]
WEBHOOK_SECRET = os.environ["WEBHOOK_SECRET"]
HOST, PORT = "127.0.0.1", int(os.environ.get("PORT", "5000"))
DATABASE = os.environ.get("DATABASE", "app.db")
# A real app keeps hashes of passwords, not passwords.
PASSWORDS = {"ann": "ann's password", "ben": "ben's password"}
SESSIONS = {}
PAGE = Path(__file__).with_name("index.html")
LOCK = threading.Lock()

db = sqlite3.connect(DATABASE, check_same_thread=False)
db.execute("CREATE TABLE IF NOT EXISTS pictures (id TEXT PRIMARY KEY, owner TEXT, name TEXT, state TEXT, note TEXT)")


def run(sql, *values):
    with LOCK, db:
        return db.execute(sql, values).fetchall()


def token(user, seconds=600):
    """A token for one user, signed with the secret that Wharfinger knows (HS256). In a real app a JWT library makes it."""
    encode = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")
    claims = {"sub": user, "tenant": "photos", "exp": int(time.time()) + seconds}
    signed = encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + b"." + encode(json.dumps(claims).encode())
    signature = hmac.new(JWT_SECRET.encode(), signed, hashlib.sha256).digest()
    return (signed + b"." + encode(signature)).decode()


def wharfinger(user, method, path):
    """A call on behalf of a user. Returns the status and the body."""
    request = urllib.request.Request(WHARFINGER + path, method=method, headers={"Authorization": "Bearer " + token(user)})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, None


def verify(headers, body):
    """Whether this webhook was signed with our secret in the last five minutes (Standard Webhooks)."""
    sent_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > 300:
        return False
    key = base64.b64decode(WEBHOOK_SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, f"{sent_id}.{sent_at}.".encode() + body, hashlib.sha256).digest())
    given = [word.partition(",")[2].encode() for word in headers.get("webhook-signature", "").split()]
    return any(hmac.compare_digest(one, expected) for one in given)


def received(message):
    """Updates our table. The same message can arrive twice, so every statement may run twice."""
    kind, data = message["type"], message["data"]
    if kind == "file-ready":
        run("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, 'ready', '')", data["fileId"], data["user"], data["fileName"])
    elif kind in ("file-failed", "file-quarantined"):
        run("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, 'rejected', ?)",
            data["fileId"], data["user"], data["fileName"], data["message"])
    elif kind == "file-cleaned-up":
        run("DELETE FROM pictures WHERE id = ?", data["fileId"])


def pictures(user):
    """The user's pictures, each with a link that an <img> can show for an hour."""
    rows = []
    for id, name, state, note in run("SELECT id, name, state, note FROM pictures WHERE owner = ? ORDER BY id DESC", user):
        link = None
        if state == "ready":
            path = f"/api/v2/files/{id}/download?redirect=false&disposition=inline&expiresIn=3600"
            status, answer = wharfinger(user, "GET", path)
            link = answer["url"] if status == 200 else None
        rows.append({"id": id, "name": name, "state": state, "note": note, "url": link})
    return rows


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=None, kind="application/json", cookie=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if cookie:
            self.send_header("Set-Cookie", f"session={cookie}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()
        self.wfile.write(data)

    def user(self):
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get("session")
        return SESSIONS.get(cookie.value) if cookie else None

    def body(self):
        return self.rfile.read(min(int(self.headers.get("Content-Length") or 0), 1 << 20))

    def do_GET(self):
        user = self.user()
        if self.path == "/":
            self.answer(200, PAGE.read_bytes(), "text/html; charset=utf-8")
        elif user is None:
            self.answer(401, {"error": "sign in first"})
        elif self.path == "/upload-token":
            self.answer(200, {"server": WHARFINGER, "token": token(user), "user": user})
        elif self.path == "/pictures":
            self.answer(200, pictures(user))
        else:
            self.answer(404, {"error": "no such page"})

    def do_POST(self):
        body = self.body()
        if self.path == "/webhook":
            if not verify(self.headers, body):
                return self.answer(401, {"error": "wrong signature"})
            received(json.loads(body))
            self.answer(200, {})
        elif self.path == "/sign-in":
            given = json.loads(body)
            if PASSWORDS.get(given.get("user")) != given.get("password"):
                return self.answer(401, {"error": "wrong name or password"})
            session = secrets.token_urlsafe(32)
            SESSIONS[session] = given["user"]
            self.answer(200, {"user": given["user"]}, cookie=session)
        else:
            self.answer(404, {"error": "no such page"})

    def do_DELETE(self):
        user, id = self.user(), self.path.removeprefix("/pictures/")
        if user is None or not run("SELECT 1 FROM pictures WHERE id = ? AND owner = ?", id, user):
            return self.answer(404, {"error": "no such picture"})
        status, _ = wharfinger(user, "DELETE", f"/api/v2/files/{id}")
        # 404: it was deleted before.
        if status not in (204, 404):
            return self.answer(503, {"error": "try again later"})
        run("DELETE FROM pictures WHERE id = ?", id)
        self.answer(200, {})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    print(f"The app listens on http://{HOST}:{PORT}", flush=True)
    ThreadingHTTPServer((HOST, PORT), Handler).serve_forever()
