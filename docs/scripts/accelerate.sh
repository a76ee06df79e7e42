#!/bin/sh
# Trains in several processes with accelerate; the exit code is nlpkit's own (docs/scale.md).
#
#   accelerate.sh PROCESSES RECIPE [OPTION...]
#
# FSDP=1: each process keeps a shard of parameters and optimizer state, in place of a copy.
set -u
case ${2:+$1} in
[1-9]*) ;;
*)
    echo "Usage: accelerate.sh PROCESSES RECIPE [OPTION...]" >&2
    exit 2
    ;;
esac
processes=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
how=--multi_gpu # also without a GPU: without it, there is one process
if [ "${FSDP:-0}" = 1 ]; then
    how=--use_fsdp
fi
# The recipe decides the precision (train.precision), not accelerate.
exec sh "$here/launch.sh" accelerate launch "$how" --num_processes "$processes" \
    --num_machines 1 --mixed_precision no --dynamo_backend no \
    --num_cpu_threads_per_process "${OMP_NUM_THREADS:-1}" \
    --main_process_port 0 --no_python sh "$here/worker.sh" pretrain "$@"
