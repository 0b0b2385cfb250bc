# fish completion for sbusctl(1). Nothing here evaluates what sbusctl returns: fish quotes it.
function __sbusctl_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l reply (command sbusctl __complete fish $before[2..-1] "$current" 2>/dev/null)
    if test "$reply[1]" = files
        __fish_complete_path (string replace --regex -- '^--[a-z-]+=' '' "$current")
    else
        string join \n -- $reply[2..-1]
    end
end
complete --command sbusctl --no-files --arguments '(__sbusctl_complete)'
