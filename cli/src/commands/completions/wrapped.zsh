    # After `--` comes another command, with completions of its own.
    local separator=${words[(i)--]}
    if (( separator < CURRENT )); then
        shift $separator words
        (( CURRENT -= separator ))
        _normal
        return
    fi
