#!/bin/sh
# Goes on with a training run for a while; started by cron until it is done (docs/cron.md).
#
#   cron.sh RECIPE [TIME] [OPTION...]     TIME: 50m, 1h30m, ... (default 50m)
#
# NLPKIT is the command (default: nlpkit), NLPKIT_LOG the log (default: nlpkit-cron.log).
# Exit code 0: done, or going on next time; else nlpkit's own, said on stderr, which cron mails.
set -u
if [ $# -lt 1 ]; then
    echo "Usage: cron.sh RECIPE [TIME] [OPTION...]" >&2
    exit 2
fi
recipe=$1
shift
limit=50m
case ${1:-} in "" | -*) ;; *) limit=$1 && shift ;; esac
log=${NLPKIT_LOG:-nlpkit-cron.log}
touch "$log" || exit 4
before=$(wc -l <"$log")

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
    echo "cron.sh: nlpkit pretrain $recipe failed, exit code $code; its last words, also in $log:" >&2
    tail -n "+$((before + 1))" "$log" | tail -n 5 >&2
    say "failed, exit code $code"
    exit "$code"
    ;;
esac
