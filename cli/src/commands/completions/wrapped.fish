
# After `--` comes another command, with completions of its own.
function __fish_leasehold_has_separator
    contains -- -- (commandline -opc)
end

function __fish_leasehold_complete_wrapped
    set -l words (commandline -opc)
    set -l separator (contains -i -- -- $words)
    set -e words[1..$separator]
    __fish_complete_subcommand --commandline $words (commandline -ct)
end

complete -c leasehold -n __fish_leasehold_has_separator -x -a "(__fish_leasehold_complete_wrapped)"
