#!/usr/bin/env bash
# Test on several GPUs of one machine (or processes, without GPUs):
#   tools/dist_test.sh CONFIG CHECKPOINT NUM_GPUS [flags of test.py]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ "$#" -lt 3 ]; then
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
config="$1" checkpoint="$2" gpus="$3"
shift 3
MMTEMPO_SCRIPT=test.py exec "$here/dist_train.sh" "$config" "$gpus" "$checkpoint" "$@"
