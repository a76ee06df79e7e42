#!/bin/sh
# Goes on with a training run for a while; started by cron until it is done (docs/cron.md).
#
#   cron.sh RECIPE [TIME] [OPTION...]     TIME: 50m, 1h30m, ... (default 50m)
#
# NLPKIT is the command (default: nlpkit), NLPKIT_LOG the log (default: nlpkit-cron.log).
# Exit code 0: done, or going on next time; else nlpkit's own, said on stderr, which cron mails.
set -u
if [ $# -lt 1 ]; then
    echo "usage: cron.sh RECIPE [TIME] [OPTION...]" >&2
    exit 2
fi
recipe=$1
limit=${2:-50m}
shift $(($# > 1 ? 2 : 1))
log=${NLPKIT_LOG:-nlpkit-cron.log}

say() {
    echo "$(date '+%Y-%m-%d %H:%M:%S') cron: $recipe: $*" >>"$log"
}

"${NLPKIT:-nlpkit}" pretrain "$recipe" --max-time "$limit" "$@" >>"$log" 2>&1
code=$?
case $code in
0) say "done" ;;
75) say "not done: time is up, or another process is at it; goes on next time" ;;
129 | 130 | 143) say "stopped by a signal; goes on next time" ;;
*)
    say "failed, exit code $code"
    echo "cron.sh: nlpkit pretrain $recipe failed, exit code $code; the end of $log:" >&2
    tail -n 5 "$log" >&2
    exit "$code"
    ;;
esac
