#!/bin/sh
# Runs the job on a Ray cluster that is there already: from cron, a CI schedule, Airflow, …
#   RAY_ADDRESS=http://head:8265 deploy/schedule/ray-job-submit.sh
# Needed: `resources: {address: auto}` in the job's file; Likeness installed on the cluster's nodes (or
# --runtime-env-json '{"pip": […]}'), and the file, the source and the collection reachable from them.
set -eu

: "${RAY_ADDRESS:?set it to the address of the dashboard: http://head:8265}"
JOB="${JOB:-/etc/likeness/job.yaml}"   # a path on the cluster's head, where Ray runs what asks for no resources

# Fixed for the day: Ray refuses an id that it knows, so whoever retries or comes twice does not start a second job. A
# day's job that failed is started again under another: SUBMISSION_ID=likeness-reembed-again deploy/schedule/ray-job-submit.sh
SUBMISSION_ID="${SUBMISSION_ID:-likeness-reembed-$(date -u +%Y-%m-%d)}"

# It follows the job's output and ends with its success or failure; add --no-wait to only start it.
# Later: ray job status "$SUBMISSION_ID", ray job stop "$SUBMISSION_ID"
exec ray job submit \
  --address "$RAY_ADDRESS" \
  --submission-id "$SUBMISSION_ID" \
  -- likeness reembed --spec "$JOB"
