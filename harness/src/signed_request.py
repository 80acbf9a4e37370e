"""Sends one signed HTTP request. Prints the status, a line break and the body of the answer.

Arguments: the scheme of the signature (s3 or azure), method, URL (already percent-encoded), account or access key,
secret, region, and unsigned headers (`name: value`). The body is read from standard input.
"""

import base64
import datetime
import hashlib
import hmac
import http.client
import sys
import urllib.parse

scheme, method, address, name, secret, region, *unsigned = sys.argv[1:]
body = sys.stdin.buffer.read()
url = urllib.parse.urlsplit(address)
now = datetime.datetime.now(datetime.timezone.utc)
query = sorted(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
quote = lambda text: urllib.parse.quote(text, safe="-_.~")
digest = lambda key, text: hmac.new(key, text.encode(), hashlib.sha256).digest()


def s3():
    """Signature version 4. The hash of the body is signed."""
    time = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    body_hash = hashlib.sha256(body).hexdigest()
    headers = {"host": url.netloc, "x-amz-content-sha256": body_hash, "x-amz-date": time}
    names = ";".join(headers)
    canonical = "\n".join(
        [method, url.path or "/", "&".join(f"{quote(k)}={quote(v)}" for k, v in query)]
        + [f"{key}:{value}" for key, value in headers.items()]
        + ["", names, body_hash]
    )
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = digest(key, part)
    canonical_hash = hashlib.sha256(canonical.encode()).hexdigest()
    signature = digest(key, f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{canonical_hash}").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={name}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def azure():
    """Shared Key for the blob service."""
    headers = {"x-ms-date": now.strftime("%a, %d %b %Y %H:%M:%S GMT"), "x-ms-version": "2021-12-02"}
    if method == "PUT" and "restype" not in dict(query):
        headers = {"x-ms-blob-type": "BlockBlob"} | headers
    length = str(len(body)) if body else ""
    text = "\n".join(
        [method, "", "", length, "", "", "", "", "", "", "", ""]
        + [f"{key}:{value}" for key, value in headers.items()]
        + [f"/{name}{url.path}"]
        + [f"{key.lower()}:{value}" for key, value in query]
    )
    signature = base64.b64encode(digest(base64.b64decode(secret), text)).decode()
    return headers | {"authorization": f"SharedKey {name}:{signature}"}


headers = {"s3": s3, "azure": azure}[scheme]()
if method in ("PUT", "POST"):
    headers["content-length"] = str(len(body))
headers |= dict(header.split(": ", 1) for header in unsigned)
connection = http.client.HTTPConnection(url.netloc, timeout=20)
target = (url.path or "/") + (f"?{url.query}" if url.query else "")
connection.request(method, target, body or None, headers)
answer = connection.getresponse()
sys.stdout.buffer.write(f"{answer.status}\n".encode() + answer.read())
