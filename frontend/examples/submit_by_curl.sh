# Submit a small job, wait for its end, read a curve. Needs curl and python3, and in the environment:
#   LAMINAR_URL      this site
#   LAMINAR_API_KEY  a key that may jobs:read and jobs:write
set -eu
api() { curl --fail-with-body --silent --show-error --retry 5 -H "Authorization: Bearer $LAMINAR_API_KEY" "$@"; }
field() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }

project=$(api "$LAMINAR_URL/api/v1/projects" | field '["data"][0]["id"]')
# The same key again is the same job, however often this is sent: made once, before the first try.
once=$(python3 -c "import uuid; print(uuid.uuid4())")
job=$(api "$LAMINAR_URL/api/v1/jobs" -H "Idempotency-Key: $once" -H "Content-Type: application/json" \
  --data '{"project": "'"$project"'", "spec": {"name": "From curl", "training": {"steps": 3}}}' | field '["id"]')
echo "$LAMINAR_URL/jobs/$job/"

while :; do
  state=$(api "$LAMINAR_URL/api/v1/jobs/$job" | field '["state"]')
  case $state in succeeded) break ;; failed | cancelled) echo "$state" >&2; exit 1 ;; esac
  sleep "${LAMINAR_LOOK_EVERY:-10}"
done
api "$LAMINAR_URL/api/v1/jobs/$job/metrics?names=reward/mean"
