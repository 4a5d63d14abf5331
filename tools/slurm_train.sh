#!/usr/bin/env bash
# Train under Slurm:
#   [GPUS=8] [GPUS_PER_NODE=8] [CPUS_PER_TASK=5] tools/slurm_train.sh PARTITION JOB CONFIG [flags]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
script="${MMTEMPO_SCRIPT:-train.py}"
if [ "$#" -lt 3 ]; then
    sed -n '2,3s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
partition="$1" job="$2" config="$3"
shift 3
gpus="${GPUS:-4}" per_node="${GPUS_PER_NODE:-4}"
# shellcheck disable=SC2086 - SRUN_ARGS is a list of words
exec srun -p "$partition" --job-name="$job" --gres="gpu:$per_node" --ntasks="$gpus" \
    --ntasks-per-node="$per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} python -u "$here/$script" "$config" "$@" --launcher slurm
