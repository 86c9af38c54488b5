    # After `--` comes another command, with completions of its own.
    local separator
    for ((separator = 1; separator < COMP_CWORD; separator++)); do
        [[ ${COMP_WORDS[separator]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((separator + 1))
        elif ((COMP_CWORD == separator + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            # Without the package bash-completion, file names are the default.
            COMPREPLY=()
        fi
        return
    done
