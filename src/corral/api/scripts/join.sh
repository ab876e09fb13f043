#!/bin/sh
# Makes this machine a worker of the Corral controller that served this script. `corral invite` prints the
# line that runs it, with the controller's key in it: nobody in between can give you another script.
# Everything goes into one folder, $CORRAL_HOME or ~/.local/share/corral. Options behind it are
# those of `corral worker join`: --name NAME, --foreground. A download cut short does nothing: it all
# happens in the last line.
set -eu

PIN='sha256//@PIN@'
WHEEL='@WHEEL@'
SHA256='@SHA256@'
VERSION='@VERSION@'
WANTED='import sys; sys.exit(sys.version_info < (3, 11))'

say() { printf '%s\n' "join: $*" >&2; }
fail() { say "$*"; exit 1; }

# From this controller alone. The token goes in by a pipe: arguments are seen by everybody here.
fetch() {
    printf 'header = "Authorization: Bearer %s"\n' "$TOKEN" |
        curl -fsSk -K - --noproxy '*' --pinnedpubkey "$PIN" -o "$2" "$URL/join/$1" ||
        fail "The controller at $URL did not hand out $1. Ask for a new line: corral invite."
}

find_python() {
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$WANTED" >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return
        fi
    done
}

# Debian and Ubuntu split `venv` off into a package of its own.
has_venv() {
    if "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then return; fi
    package="python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Installing $package."
        { apt-get install -y -q "$package" || { apt-get update -q && apt-get install -y -q "$package"; }; } \
            </dev/null >/dev/null 2>&1 && return
    fi
    return 1
}

make_venv() {
    python="$(find_python)"
    if [ -n "$python" ] && has_venv "$python"; then
        "$python" -m venv --clear "$1"
    elif command -v uv >/dev/null 2>&1; then
        uv venv -q --clear --python '>=3.11' "$1"
    elif [ -n "$python" ]; then
        fail "$python cannot make virtual environments. Debian, Ubuntu: apt-get install $package. Then run this line again."
    else
        fail "Corral needs Python 3.11 or newer, or uv. Install one of them, then run this line again."
    fi
}

install_into() {
    if "$1/bin/python" -c 'import pip' >/dev/null 2>&1; then
        "$1/bin/python" -m pip install -q --disable-pip-version-check -c "$2/constraints.txt" "$2/$WHEEL"
    else
        uv pip install -q --python "$1/bin/python" -c "$2/constraints.txt" "$2/$WHEEL"
    fi || fail "The parts of Corral could not be installed; the message is above. Then run this line again."
}

# So that `corral` is found in the next shell. Somebody else's `corral` stays.
offer_command() {
    bin="${HOME:-}/.local/bin"
    if [ -z "${HOME:-}" ] || [ -n "${CORRAL_HOME:-}" ] || { [ -e "$bin/corral" ] && [ "$(readlink "$bin/corral")" != "$1" ]; }; then
        say "The command is $1"
        return
    fi
    { mkdir -p "$bin" && ln -sfn "$1" "$bin/corral"; } 2>/dev/null || { say "The command is $1"; return; }
    case ":$PATH:" in
        *":$bin:"*) say "The command is corral ($bin/corral)" ;;
        *) say "The command is $bin/corral; to type just corral: export PATH=\"\$HOME/.local/bin:\$PATH\"" ;;
    esac
}

main() {
    invitation="${CORRAL_INVITATION:-}"
    unset CORRAL_INVITATION
    case "${1:-}" in corral://*) invitation="$1"; shift ;; esac
    case "$invitation" in
        corral://*\?*for=client*) fail "This string is for clients (corral login). Use the line that \`corral invite\` prints." ;;
        corral://*@*:*\?*) ;;
        *) fail "Give the invitation of \`corral invite\` as CORRAL_INVITATION='…' in front of \`sh -s --\`, between single quotes." ;;
    esac
    rest="${invitation#corral://}"
    TOKEN="${rest%%@*}"
    rest="${rest#*@}"
    URL="https://${rest%%\?*}"

    umask 077
    home="${CORRAL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/corral}"
    folder="$VERSION-$(printf '%.8s' "$SHA256")"
    place="$home/software/$folder"
    if [ ! -e "$place/.complete" ]; then
        mkdir -p "$home/software"
        download="$(mktemp -d)"
        trap 'rm -rf "$download"' EXIT
        fetch "$WHEEL" "$download/$WHEEL"
        fetch constraints.txt "$download/constraints.txt"
        say "Installing Corral $VERSION into $place (half a minute or so)."
        make_venv "$place"
        "$place/bin/python" - "$download/$WHEEL" "$SHA256" <<'END' || fail "The download is damaged; run this line again."
import hashlib, sys
sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])
END
        install_into "$place" "$download"
        # On the disk before it counts as complete: a power cut would leave empty files.
        "$place/bin/python" -c 'import os; os.sync()'
        : >"$place/.complete"
    fi
    ln -sfn "$folder" "$home/software/current"
    rm -rf "${download:-}"
    trap - EXIT
    offer_command "$home/software/current/bin/corral"
    CORRAL_HOME="$home" CORRAL_INVITATION="$invitation" exec "$place/bin/corral" worker join "$@" </dev/null
}

main "$@"
