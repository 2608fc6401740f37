#!/bin/sh
# Puts ipmi_sim, ipmitool, fence_ipmilan and fence_kdump_send into a cache directory, for tests that need a BMC or a
# sender of kdump datagrams.
#
#   fetch.sh [CACHE]     CACHE is ${XDG_CACHE_HOME:-$HOME/.cache}/evictd if not given
#
# It installs nothing: it unpacks Debian's packages below CACHE/bmc/root, and writes a script for each program, which
# starts it with the libraries there. It keeps what is already there. Exit status 0 means that CACHE/bmc/ipmi_sim and
# CACHE/bmc/ipmitool can run here. CACHE/bmc/fence_ipmilan is there if it can run too, which takes python3, and
# CACHE/bmc/fence_kdump_send, which takes no more than those.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-${XDG_CACHE_HOME:-${HOME:?is not set, and no cache directory was given}/.cache}/evictd}
have=$cache/bmc
if [ -x "$have/ipmi_sim" ] && [ -x "$have/ipmitool" ] && [ -x "$have/fence_kdump_send" ]; then
	echo "ipmi_sim and ipmitool are in $have"
	exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
# shellcheck source=tests/debian.sh
. "$here/../debian.sh"
unpack openipmi libopenipmi0 libpopt0 ipmitool libfreeipmi17 libreadline8 \
	fence-agents python3-pexpect python3-ptyprocess python3-pycurl libcurl3-gnutls
new=$work/bmc
mkdir -p "$new/root/usr/bin" "$new/root/usr/sbin" "$new/root/usr/share"
for file in bin/ipmi_sim bin/ipmitool sbin/fence_ipmilan lib share/fence; do
	mv "$work/root/usr/$file" "$new/root/usr/$file"
done

# program NAME COMMAND writes a script that runs a command, in which $root is the directory with the packages.
program() {
	cat >"$new/$1" <<-END
		#!/bin/sh
		root=\$(cd "\$(dirname "\$0")" && pwd)/root
		for dir in "\$root"/usr/lib/*-linux-*; do
			export LD_LIBRARY_PATH="\$dir"
		done
		$2
	END
	chmod 755 "$new/$1"
}
program ipmi_sim 'exec "$root/usr/bin/ipmi_sim" "$@"'
program ipmitool 'exec "$root/usr/bin/ipmitool" "$@"'
# The agent starts the ipmitool that its parameter ipmitool_path names.
program fence_ipmilan 'export PYTHONPATH="$root/usr/share/fence:$root/usr/lib/python3/dist-packages" PYTHONDONTWRITEBYTECODE=1
exec python3 -W ignore "$root/usr/sbin/fence_ipmilan" "$@"'

"$new/ipmitool" -V >/dev/null 2>"$work/log" || {
	cat "$work/log" >&2
	echo "fetch ipmitool: the program of the package does not run here" >&2
	exit 1
}
"$new/ipmi_sim" --help >"$work/log" 2>&1 || grep -q -- --config-file "$work/log" || {
	cat "$work/log" >&2
	echo "fetch ipmi_sim: the program of the package does not run here" >&2
	exit 1
}
echo action=metadata | "$new/fence_ipmilan" >/dev/null 2>"$work/log" || {
	tail -n 1 "$work/log" >&2
	echo "fetch fence_ipmilan: it does not run here: tests that need it are skipped" >&2
	rm "$new/fence_ipmilan"
}

# It needs no library but libc.
cp "$work/root/usr/libexec/fence-agents/fence_kdump_send" "$new/"

# A concurrent fetch.sh may have created the directory: keep it.
[ -e "$have" ] || mv "$new" "$have"
# A directory of an older fetch.sh has no fence_kdump_send.
[ -e "$have/fence_kdump_send" ] || mv "$new/fence_kdump_send" "$have/"
[ -x "$have/ipmi_sim" ] && [ -x "$have/ipmitool" ] || {
	echo "fetch ipmi_sim: $have exists but is incomplete: remove it" >&2
	exit 1
}
echo "unpacked ipmi_sim and ipmitool into $have"
