#!/usr/bin/env bash
# Calls the whole API with curl, checks every answer, and stops at the first unexpected one.
#
# Use it on your own server only: it leases files that are meant for the server's workers. It deletes what it uploads.
#
#   export WHARFINGER_URL=http://127.0.0.1:8080
#   export WHARFINGER_TOKEN=$(wharfinger token --tenant acme --user ann)
#   export OPERATOR_TOKEN=$(wharfinger token --tenant ops --user op --role operator)
#   export WORKER_TOKEN=$(wharfinger token --tenant ops --user scanner --role worker)
#   docs/examples/api.sh
set -euo pipefail

S=${WHARFINGER_URL:?the URL of the server}
USER_TOKEN=${WHARFINGER_TOKEN:?the token of a user}
OPERATOR_TOKEN=${OPERATOR_TOKEN:?the token of an operator}
WORKER_TOKEN=${WORKER_TOKEN:?the token of a worker}

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
TOKEN=$USER_TOKEN # the caller
BODY=             # the last answer

say() { printf '\n%s\n' "$*"; }
fail() { printf 'FAILED: %s\n%s\n' "$*" "$BODY" >&2; exit 1; }

# call STATUS METHOD PATH [more arguments of curl]
call() {
  local want=$1 method=$2 path=$3 status
  shift 3
  status=$(curl -sS -X "$method" "$S$path" -H "Authorization: Bearer $TOKEN" -o "$WORK/body" -w '%{http_code}' "$@")
  BODY=$(<"$WORK/body")
  printf '  %-6s %s → %s\n' "$method" "$path" "$status"
  [ "$status" = "$want" ] || fail "$method $path answered $status, not $want"
}
post() { call "$1" POST "$2" -d "$3"; }
get() { call "${2:-200}" GET "$1"; }
as() { TOKEN=$1; }

# The first member with this name, a string or a number.
field() {
  [[ $BODY =~ \"$1\":\"?([^\",}]*) ]] || fail "no $1"
  printf '%s' "${BASH_REMATCH[1]}"
}
has() { [[ $BODY == *"$1"* ]] || fail "the answer has no $1"; }
lacks() { [[ $BODY != *"$1"* ]] || fail "the answer has $1"; }
refused() { call "$@"; has "\"code\":\"$REFUSAL\""; }

# put FILE: sends the bytes to the URL of the last answer, with its headers.
put() {
  local url type=() status
  url=$(field uploadUrl)
  if [[ $BODY =~ \"content-type\":\"([^\"]*)\" ]]; then type=(-H "content-type: ${BASH_REMATCH[1]}"); fi
  status=$(curl -sS -T "$1" ${type[@]+"${type[@]}"} -o "$WORK/put" -w '%{http_code}' "$url")
  printf '  PUT    the upload URL → %s\n' "$status"
  [ "$status" = 200 ] || fail "the upload answered $status: $(<"$WORK/put")"
}

# upload NAME CONTENT [TYPE]: sets ID to the file's id.
upload() {
  printf '%s' "$2" > "$WORK/file"
  local size
  size=$(wc -c < "$WORK/file")
  post 201 /api/v2/files/init "{\"fileName\":\"$1\",\"size\":$((size)),\"contentType\":\"${3:-text/plain}\"}"
  ID=$(field fileId)
  put "$WORK/file"
  call 200 POST "/api/v2/files/$ID/confirm"
}

# If no process of the server scans files, this script does, with this verdict.
VERDICT=clean
scan_one() {
  local before=$TOKEN job lease
  as "$WORKER_TOKEN"
  BODY=$(curl -sSf "$S/api/v2/workers/lease" -H "Authorization: Bearer $TOKEN" -d '{"stages":["scan"],"max":1}')
  if [[ $BODY == *'"jobId"'* ]]; then
    printf '  POST   /api/v2/workers/lease → 200\n'
    job=$(field jobId) lease=$(field leaseToken)
    post 200 "/api/v2/workers/jobs/$job/heartbeat" "{\"leaseToken\":\"$lease\"}"
    has '"leaseUntil"'
    post 200 "/api/v2/workers/jobs/$job/complete" "{\"leaseToken\":\"$lease\",\"output\":{\"verdict\":\"$VERDICT\"}}"
    REFUSAL=lease_lost refused 409 POST "/api/v2/workers/jobs/$job/fail" -d "{\"leaseToken\":\"$lease\",\"error\":\"too late\"}"
  fi
  as "$before"
}

# wait_until STATUS: waits until the file in ID has this status.
wait_until() {
  local tries=0
  until BODY=$(curl -sS "$S/api/v2/files/$ID" -H "Authorization: Bearer $TOKEN") && [[ $BODY == *"\"status\":\"$1\""* ]]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fail "the file did not become $1"
    scan_one
    sleep 0.2
  done
  printf '  the file is %s\n' "$1"
}

say "Health, readiness, metrics, OpenAPI"
get /healthz; has '"status":"ok"'
get /readyz; has '"status":"ready"'
get /metrics; has file_pipeline_status
get /openapi.json; has '"openapi":"3.1'

say "Tokens and roles"
as nonsense; REFUSAL=unauthorized refused 401 GET /api/v2/files
as "$USER_TOKEN"; REFUSAL=forbidden refused 403 GET /api/v2/maintenance/sweeps

say "A file: init, upload, confirm, wait, read"
printf 'The lighthouse keeper signed for forty crates of coffee.\n' > "$WORK/ledger.txt"
KEY=suite-$$-$RANDOM
INIT="{\"fileName\":\"ledger.txt\",\"size\":$(($(wc -c < "$WORK/ledger.txt"))),\"contentType\":\"text/plain\",\"metadata\":{\"order\":4711}}"
call 201 POST /api/v2/files/init -H "Idempotency-Key: $KEY" -d "$INIT"
has '"status":"registered"'
LEDGER=$(field fileId)
REFUSAL=object_missing refused 409 POST "/api/v2/files/$LEDGER/confirm"
call 200 POST "/api/v2/files/$LEDGER/url"
put "$WORK/ledger.txt"
call 200 POST "/api/v2/files/$LEDGER/confirm"
call 200 POST "/api/v2/files/$LEDGER/confirm" # repeated: answers the current status
ID=$LEDGER
wait_until ready
has '"order":4711'
get "/api/v2/files/$LEDGER/history"; has '"to":"registered"'; has '"to":"ready"'
get "/api/v2/files?limit=100"; has "$LEDGER"; has '"nextCursor"'
STATUS=$(curl -sSL "$S/api/v2/files/$LEDGER/download" -H "Authorization: Bearer $TOKEN" -o "$WORK/copy" -w '%{http_code}')
[ "$STATUS" = 200 ] && cmp -s "$WORK/ledger.txt" "$WORK/copy" || fail "the download is not what was uploaded"
printf '  GET    %s → 200, the same bytes\n' "/api/v2/files/$LEDGER/download"

say "The text of a file, and search"
get "/api/v2/files/$LEDGER/chunks?limit=10"; has "forty crates of coffee"
post 200 /api/v2/search '{"query":"lighthouse keeper coffee","limit":5}'; has "$LEDGER"

say "The same idempotency key answers the same file"
call 201 POST /api/v2/files/init -H "Idempotency-Key: $KEY" -d "$INIT"
[ "$(field fileId)" = "$LEDGER" ] || fail "the key created another file"
REFUSAL=idempotency_mismatch refused 422 POST /api/v2/files/init -H "Idempotency-Key: $KEY" -d '{"fileName":"other","size":1}'

say "Quota"
get /api/v2/quota; has '"used"'; has '"reserved"'
TENANT=$(field tenant) LIMIT=$(field limit)
REFUSAL=quota_exceeded refused 403 POST /api/v2/files/init -d "{\"fileName\":\"huge\",\"size\":$((LIMIT + 1))}"
as "$OPERATOR_TOKEN"
call 200 PUT "/api/v2/tenants/suite-$$/quota" -d '{"limit":1048576}'
[ "$(field limit)" = 1048576 ] || fail "the limit was not set"
call 200 PUT "/api/v2/tenants/suite-$$/policy" -d '{"allowedTypes":["image/*"],"requestsPerSecond":50}'; has '"effective"'
get "/api/v2/tenants/suite-$$/policy"; has 'image/*'
get "/api/v2/tenants?limit=1000"; has "\"tenant\":\"$TENANT\""
get "/api/v2/keys?limit=100"
get "/api/v2/maintenance/audit?limit=100"; has '"entries":'
get /api/v2/session; has "\"role\":\"operator\""

say "Files of another user answer 404"
post 201 /api/v2/files/init '{"fileName":"the-operators","size":1}'
OTHERS=$(field fileId)
as "$USER_TOKEN"
REFUSAL=not_found refused 404 GET "/api/v2/files/$OTHERS"
REFUSAL=not_found refused 404 DELETE "/api/v2/files/$OTHERS"
as "$OPERATOR_TOKEN"; call 204 DELETE "/api/v2/files/$OTHERS"; as "$USER_TOKEN"

say "Errors name the mistake"
REFUSAL=invalid_request refused 400 POST /api/v2/files/init -d '{"fileName":"x"}'; has '"errors"'
REFUSAL=terminal_state refused 400 POST "/api/v2/uploads/stuck/$LEDGER/retry"
REFUSAL=not_found refused 404 GET /api/v2/files/00000000-0000-7000-8000-000000000000

say "A batch: open, complete too early, complete"
post 201 /api/v2/batches '{"files":[]}'
BATCH=$(field batchId)
has '"status":"active"'
printf 'page' > "$WORK/page"
post 201 /api/v2/files/init "{\"fileName\":\"page.txt\",\"size\":4,\"contentType\":\"text/plain\",\"batchId\":\"$BATCH\"}"
PAGE=$(field fileId) GRANT=$BODY
REFUSAL=batch_incomplete refused 409 POST "/api/v2/batches/$BATCH/complete"
BODY=$GRANT; put "$WORK/page"
call 200 POST "/api/v2/batches/$BATCH/complete"; has "$PAGE"
get "/api/v2/batches/$BATCH"; has '"status":"completed"'

say "Short names of the same calls"
post 201 /files/init '{"fileName":"short.txt","size":4,"contentType":"text/plain"}'
SHORT=$(field fileId)
put "$WORK/page"
call 200 POST "/files/$SHORT/confirm"
call 204 DELETE "/api/v2/files/$SHORT"

say "A cancelled batch"
post 201 /api/v2/batches '{"files":[{"fileName":"a","size":1},{"fileName":"b","size":2}]}'
BATCH=$(field batchId) GONE=$(field fileId)
call 200 POST "/api/v2/batches/$BATCH/cancel"; has '"status":"cancelled"'
REFUSAL=gone refused 410 POST "/api/v2/files/$GONE/confirm"
REFUSAL=batch_closed refused 409 POST /api/v2/files/init -d "{\"fileName\":\"late\",\"size\":1,\"batchId\":\"$BATCH\"}"

say "A damaged file fails and leaves a dead letter"
upload broken.pdf '%PDF-1.7 and nothing else' application/pdf
BROKEN=$ID
wait_until failed
get "/api/v2/dlq?limit=100"
[[ $BODY =~ \"jobId\":\"([^\"]*)\",\"fileId\":\"$BROKEN\" ]] || fail "the file has no dead letter"
JOB=${BASH_REMATCH[1]}
call 200 POST "/api/v2/dlq/$JOB/redrive"
wait_until failed # it is still damaged
call 204 DELETE "/api/v2/dlq/$JOB"
get "/api/v2/notifications?limit=100"; has '"kind":"file-failed"'; has '"kind":"file-ready"'

say "An infected file is quarantined; an operator releases a false alarm"
VERDICT=infected
upload eicar.txt 'X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-''STANDARD-ANTIVIRUS-''TEST-FILE!$H+H*'
wait_until quarantined
VERDICT=clean
has '"deletionDate"'
REFUSAL=quarantined refused 409 GET "/api/v2/files/$ID/download"
REFUSAL=forbidden refused 403 POST "/api/v2/files/$ID/release" -d '{"reason":"mine"}'
as "$OPERATOR_TOKEN"
post 200 "/api/v2/files/$ID/release" '{"reason":"a test file of scanners"}'; has '"status"'
REFUSAL=not_quarantined refused 409 POST "/api/v2/files/$ID/release" -d '{"reason":"again"}'
as "$USER_TOKEN"
wait_until ready
get "/api/v2/files/$ID/history"; has 'released: a test file of scanners'
call 204 DELETE "/api/v2/files/$ID"

say "Stuck files"
get /api/v2/uploads/stuck; has '"total"'
call 200 POST /api/v2/uploads/stuck/retry-all; has '"retriedCount"'

say "The dashboard"
get /api/v2/uploads/dashboard; has '"statusDistribution"'; has '"file-embed"'; has '"failureRate24h"'
get /api/v2/uploads/trend; has '"bucketMs":900000'
get /api/v2/uploads/orphans; has '"orphanBlobs"'
for seconds in 3 30; do
  STREAM=$(curl -sSN --max-time $seconds "$S/api/v2/stream" -H "Authorization: Bearer $TOKEN" 2> /dev/null || true)
  [[ $STREAM == *quota* ]] && break
done
for event in dashboard trend quota; do
  [[ $STREAM == *"event: $event"* || $STREAM == *"event:$event"* ]] || fail "the stream has no $event"
done
printf '  GET    /api/v2/stream → dashboard, trend, quota\n'

say "Events: one, many, compressed, and a bad one"
post 202 /api/v2/events '{"what":"one"}'; has '"accepted":1'
printf '{"n":1}\n{"n":2}\n{"n":3}\n' > "$WORK/events.ndjson"
call 202 POST /api/v2/events -H 'Content-Type: application/x-ndjson' --data-binary "@$WORK/events.ndjson"
has '"accepted":3'
gzip -c "$WORK/events.ndjson" > "$WORK/events.ndjson.gz"
call 202 POST /api/v2/events -H 'Content-Type: application/x-ndjson' -H 'Content-Encoding: gzip' \
  --data-binary "@$WORK/events.ndjson.gz"
has '"accepted":3'
printf '{"n":1}\nnonsense\n' > "$WORK/bad.ndjson"
REFUSAL=invalid_request refused 400 POST /api/v2/events -H 'Content-Type: application/x-ndjson' --data-binary "@$WORK/bad.ndjson"
has '"line":2'

say "For operators: sweeps, the spool, figures of all tenants"
as "$OPERATOR_TOKEN"
get "/api/v2/files?tenant=$TENANT"; has '"files"'
get "/api/v2/uploads/dashboard?tenant=$TENANT"; has '"statusDistribution"'
get /api/v2/maintenance/spool; has '"instance"'
get /api/v2/maintenance/sweeps
for sweep in stuck-file-recovery orphan-cleanup batch-timeout pending-cleanups quota-sync upload-window; do has "\"$sweep\""; done
post 200 /api/v2/maintenance/sweeps/orphan-cleanup/run '{"dryRun":true}'; has '"orphanBlobs"'
call 200 POST /api/v2/uploads/orphans/scan; has '"dryRun":true'
get "/api/v2/maintenance/sweeps/orphan-cleanup/runs?limit=2"; has '"dryRun":true'; has '"by":"operator:'

say "Delete: the file disappears at once, its bytes in the background"
as "$USER_TOKEN"
call 204 DELETE "/api/v2/files/$LEDGER"
REFUSAL=not_found refused 404 GET "/api/v2/files/$LEDGER"
call 204 DELETE "/api/v1/documents/$PAGE" # the old name of the same call
call 204 DELETE "/api/v2/files/$BROKEN"
post 200 /api/v2/search '{"query":"lighthouse keeper coffee","limit":5}'; lacks "$LEDGER"

say "Cleanups"
as "$OPERATOR_TOKEN"
call 200 POST /api/v1/maintenance/cleanup/trigger; has '"attempted"'
get /api/v1/maintenance/cleanup/status; has '"exhausted"'
get /api/v1/maintenance/cleanup/pending; has '"cleanups"'
get "/api/v2/maintenance/deletions?since=2026-01-01T00:00:00Z&limit=10"; has '"deletions"'

say "All answers are as expected."
