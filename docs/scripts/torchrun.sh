#!/bin/sh
# Trains in several processes with torchrun; the exit code is nlpkit's own (docs/scale.md).
#
#   torchrun.sh PROCESSES RECIPE [OPTION...]      PROCESSES: on this node, one for each GPU
#
# Several nodes: the same command on each of them, with NODES (how many) and HEAD (the first one,
# HOST:PORT). They need a file system that all of them share for the run and the cache.
# ACCELERATE_USE_FSDP=true: each process keeps a shard of parameters and optimizer state.
set -u
case ${2:+$1} in
auto | cpu | gpu | [1-9]*) ;;
*)
    echo "Usage: torchrun.sh PROCESSES RECIPE [OPTION...]" >&2
    exit 2
    ;;
esac
processes=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
if [ "${NODES:-1}" = 1 ]; then
    set -- --standalone --nproc-per-node "$processes" \
        --no-python sh "$here/worker.sh" pretrain "$@"
else
    set -- --nnodes "$NODES" --nproc-per-node "$processes" \
        --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "${JOB:-nlpkit}" \
        --no-python sh "$here/worker.sh" pretrain "$@"
fi
exec sh "$here/launch.sh" torchrun "$@"
