#!/usr/bin/env bash
# Train on several GPUs of one machine (or processes, without GPUs), or on several machines:
#   tools/dist_train.sh CONFIG NUM_GPUS [flags of train.py]
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=host tools/dist_train.sh CONFIG NUM_GPUS
# SIGTERM and Ctrl-C save a checkpoint; torchrun kills processes that have not ended after 30 s
# (set TORCH_ELASTIC_SHUTDOWN_TIMEOUT=SECONDS to change that; needs a recent torch).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
script="${MMTEMPO_SCRIPT:-train.py}"
if [ "$#" -lt 2 ]; then
    sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
config="$1" gpus="$2"
shift 2
exec python "$here/dist_run.py" \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$gpus" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$here/$script" "$config" "$@" --launcher pytorch
