#!/bin/sh
# Starts the launcher of a run and passes signals on to it: docker stop and systemd may send them to
# this process alone. The exit code is nlpkit's own, which worker.sh writes to CODE_FILE.
#
#   launch.sh LAUNCHER [OPTION...]     started by torchrun.sh and accelerate.sh, in their place
set -u
CODE_FILE=$(mktemp)
export CODE_FILE
launcher=
pass_on() { # SIGNAL CODE: a worker that is not started yet reads the code, and does not start
    [ -s "$CODE_FILE" ] || echo "$2" >"$CODE_FILE"
    [ -z "$launcher" ] || kill -s "$1" "$launcher" 2>/dev/null
}
trap 'pass_on HUP 129' HUP
trap 'pass_on INT 130' INT
trap 'pass_on TERM 143' TERM
# In the background, as a shell runs traps between commands only; with this standard input.
exec 3<&0
"$@" <&3 3<&- &
launcher=$!
wait "$launcher"
end=$?
while kill -s 0 "$launcher" 2>/dev/null; do # a signal has ended the wait
    wait "$launcher"
    end=$?
done
code=$(cat "$CODE_FILE")
rm -f "$CODE_FILE"
exit "${code:-$end}" # nlpkit may not have been started
