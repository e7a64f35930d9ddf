# install.sh - what Debian 12 and 13 must have; read by quickstart.sh and check.sh, not run.
#
# ek_install build|check [...]: nothing happens, and no network is needed, where all is there.
# What is missing is installed as root; anyone else gets one sentence with the command to run.

# Lines of "package  how to see that it is there": a command, a pkg-config name, or a test.
EK_BUILD='
gcc                 command gcc
cmake               command cmake
ninja-build         command ninja
pkg-config          command pkg-config
libcyaml-dev        library libcyaml
libyaml-dev         library yaml-0.1
libsqlite3-dev      library sqlite3
libcjson-dev        library libcjson
libpcre2-dev        library libpcre2-8
libxxhash-dev       library libxxhash
libcmocka-dev       library cmocka
python3             command python3
python3-pip         pip
python3-matplotlib  python matplotlib
ca-certificates     file /etc/ssl/certs/ca-certificates.crt
'
# clang's OpenMP and its sanitizer and fuzzer runtimes are packages of their own.
EK_CHECK='
g++                 command g++
clang               command clang
libomp-dev          package
libclang-rt-dev     package
clang-format        command clang-format
python3-venv        python ensurepip
git                 command git
'

ek_has_package() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

ek_is_there() { # package kind [name]
    ek_has_package "$1" && return 0
    case $2 in
    command) command -v "$3" >/dev/null ;;
    library) pkg-config --exists "$3" 2>/dev/null ;;
    python) python3 -c "import importlib.util as u, sys; sys.exit(u.find_spec('$3') is None)" 2>/dev/null ;;
    pip) python3 -m pip --version >/dev/null 2>&1 ;;
    file) [ -e "$3" ] ;;
    *) return 1 ;;
    esac
}

ek_install() {
    local list="" missing=() package kind name
    for name in "$@"; do
        case $name in
        build) list+=$EK_BUILD ;;
        check) list+=$EK_CHECK ;;
        esac
    done
    while read -r package kind name; do
        [ -n "$package" ] || continue
        ek_is_there "$package" "$kind" "$name" || missing+=("$package")
    done <<<"$list"
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing packages; as root run: apt-get install -y ${missing[*]}" >&2
        return 2
    fi
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    if ! { apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
        >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        echo "apt-get could not install: ${missing[*]}" >&2
        return 1
    fi
    rm -f "$log"
}

# A Python with numpy and safetensors, by which tests read and write the files that others would.
ek_python() { # folder to make it in, unless it is there
    "$1/bin/python" -c 'import numpy, safetensors' 2>/dev/null && return 0
    rm -rf "$1"
    python3 -m venv "$1" && "$1/bin/python" -m pip -q install --no-input numpy safetensors
}
