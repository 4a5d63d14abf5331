#!/usr/bin/env bash
# Test under Slurm:
#   [GPUS=4] [GPUS_PER_NODE=4] tools/slurm_test.sh PARTITION JOB CONFIG CHECKPOINT [flags]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ "$#" -lt 4 ]; then
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
MMTEMPO_SCRIPT=test.py exec "$here/slurm_train.sh" "$@"
