#!/bin/sh
# One process of a launch. Launchers have exit codes of their own; nlpkit's goes to CODE_FILE.
#
#   CODE_FILE=FILE worker.sh VERB [OPTION...]     started by torchrun or accelerate on each rank
#
# NLPKIT is the command (default: nlpkit).
set -u
[ -s "$CODE_FILE" ] && exit "$(cat "$CODE_FILE")" # stopped before it was started
trap : TERM INT HUP # nlpkit gets the signal, too: it saves and ends, and this waits for it
"${NLPKIT:-nlpkit}" "$@"
code=$?
if [ "${LOCAL_RANK:-0}" = 0 ]; then
    echo "$code" >"$CODE_FILE"
fi
exit "$code"
