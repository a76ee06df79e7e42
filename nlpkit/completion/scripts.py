"""The completion scripts of the shells, and their installation."""

import os
from collections.abc import Mapping
from pathlib import Path

from nlpkit.errors import UsageError

_BASH = """\
_nlpkit_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
        _NLPKIT_COMPLETE=complete_bash "$1" 2>/dev/null) )
    # After `train.` and `train.steps=` there is more to type.
    [[ ${COMPREPLY[0]} == *[.=] ]] && compopt -o nospace
    return 0
}
complete -o default -F _nlpkit_completion nlpkit
"""
_ZSH = """\
#compdef nlpkit
_nlpkit() {
    local -a found open closed
    local line text
    found=("${(@f)$(COMP_WORDS="${(pj:\\n:)words}" COMP_CWORD=$((CURRENT - 1)) \\
        _NLPKIT_COMPLETE=complete_zsh "$words[1]" 2>/dev/null)}")
    for line in $found; do
        text="${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}"
        # After `train.` and `train.steps=` there is more to type.
        case "${line%%$'\\t'*}" in
            *[.=]) open+=("$text") ;;
            *) closed+=("$text") ;;
        esac
    done
    (( $#open )) && _describe nlpkit open -S ''
    (( $#closed )) && _describe nlpkit closed
    (( $#open + $#closed )) || _files
}
if [[ $funcstack[1] == _nlpkit ]]; then
    _nlpkit "$@"
else
    compdef _nlpkit nlpkit
fi
"""
_FISH = """\
function __nlpkit_offers
    set -l words (commandline -opc) (commandline -ct)
    set -l found (env COMP_WORDS=(string join \\n -- $words | string collect) \\
        COMP_CWORD=(math (count $words) - 1) _NLPKIT_COMPLETE=complete_fish $words[1] 2>/dev/null)
    if test (count $found) -gt 0
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command nlpkit --no-files --arguments '(__nlpkit_offers)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
# In the home directory: the script's file, the shell's startup file, and the line to add to it.
_FILES = {
    "bash": (".bash_completions/nlpkit.sh", ".bashrc", "source ~/.bash_completions/nlpkit.sh"),
    "zsh": (".zfunc/_nlpkit", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/nlpkit.fish", "", ""),
}


def get_script(environment: Mapping[str, str]) -> str:
    """Return the script for the user's shell; raise `UsageError`."""
    return _SCRIPTS[_find_shell(environment)]


def install(environment: Mapping[str, str]) -> Path:
    """Install the script for the user's shell, and return its path."""
    shell = _find_shell(environment)
    path, startup, line = _FILES[shell]
    home = Path.home()
    file = home / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_SCRIPTS[shell], encoding="utf-8")
    if startup:
        with open(home / startup, "a+", encoding="utf-8", errors="surrogateescape") as opened:
            opened.seek(0)
            if line not in opened.read():
                opened.write(f"\n{line}\n")
    return file


def _find_shell(environment: Mapping[str, str]) -> str:
    name = os.path.basename(environment.get("SHELL", ""))
    if name not in _SCRIPTS:
        known = ", ".join(_SCRIPTS)
        raise UsageError(f"$SHELL is {name!r}; completion is for {known}: SHELL=bash nlpkit ...")
    return name
